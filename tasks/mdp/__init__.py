"""The vocabulary of tasks: the Task itself, context, observations, terms, commands, symmetry, gait metrics.

Read `task.py` first, then `context.py`.
"""
