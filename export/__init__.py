"""Export of a trained policy to a robot's computer: one file per stage.

May import: commands (evaluation) and the layers below it. Read `stages.py` first, then `request.py`.
"""
