"""`robolearn sweep`: many trainings, each in its own process, here or on Ray; and searches for good settings.

May import: commands/report, and what `robolearn.commands` may. Read `sweep.py` first, then `scheduler.py`; `grammar.py`
expands the command line, `state.py` is sweep.json.
"""
