"""Learning algorithms: what they share lies here, and each has a folder of its own (`ppo/`, `shac/`).

May import: core and what stands below it, no `external`. A learner is a folder here and a row in `config/tables.py`.
Read `policy.py` first, then `learner.py`, the protocol, then `ppo/ppo.py`.
"""
