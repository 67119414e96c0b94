"""`robolearn prefer`: asks a person, or a script, which of two segments of a run's behaviour is better.

May import what `robolearn.commands` may. Read `prefer.py` first; `session.py` chooses pairs and keeps the answers.
"""
