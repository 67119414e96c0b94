"""From a trained run to the robot's computer: a file a stage.

May import: commands (evaluation) and what stands below it. Read `stages.py` first, then `request.py`.
"""
