"""A finished policy in simulation: whole episodes counted, scripts of commands and pushes, pictures and videos.

May import: training and the layers below it; commands, views and export import it. Read `episodes.py` first, then
`script.py`.
"""
