"""One file a task, read top to bottom; `mdp/` is the vocabulary they are written in.

May import: envs and what stands below it. Read `cartpole.py` first.
"""
