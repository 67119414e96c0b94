"""Environments of other libraries as tasks: `task=DOOR:ID`.

May import: core and the layers below it, not `learners`. A door is a file here and a row in `config/tables.py`.
Read `env.py` first, then `gymnasium.py`.
"""
