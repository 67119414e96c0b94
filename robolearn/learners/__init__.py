"""Learning algorithms: what they share lies here, and each has a folder of its own (`ppo/`, `shac/`).

May import: core and what stands below it, no `external`. A learner is a folder here and a row in `config/tables.py`.
Read `learner.py` first, the protocol, then `ppo/ppo.py`.
"""
