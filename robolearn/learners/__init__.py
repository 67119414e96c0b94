"""Learning algorithms: their shared parts, and one folder per algorithm (`ppo/`, `shac/`, `clone/`,
`distill/`; `imitation/` is what the last two share, `demonstrations/` what is recorded).

May import: core and the layers below it, not `external`. A learner is a folder here and a row in `config/tables.py`.
Read `policy.py` first, then `learner.py`, the protocol, then `ppo/ppo.py`; `engine.py` has the gradient steps.
"""
