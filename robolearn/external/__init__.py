"""Other people's environments coming in, as tasks: `task=DOOR:ID`.

May import: core and what stands below it, no `learners`. A door is a file here and a row in `config/tables.py`.
Read `env.py` first, then `gymnasium.py`.
"""
