"""The building blocks of tasks: Task, Context, observations, terms, commands, symmetry, gait metrics.

Read `task.py` first, then `context.py`.
"""
