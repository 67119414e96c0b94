"""One file per task, read from top to bottom; `mdp/` holds the building blocks.

May import: envs and the layers below it. Read `cartpole.py` first.
"""
