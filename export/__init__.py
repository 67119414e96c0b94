"""Export of a trained policy to a robot's computer: one file per stage.

May import: simulation and the layers below it. Read `stages.py` first, then `request.py`.
"""
