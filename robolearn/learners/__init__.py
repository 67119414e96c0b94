"""Learning algorithms: their shared parts, and one folder per algorithm (`ppo/`, `grpo/`, `shac/`, `clone/`,
`distill/`, `dpo/`). `imitation/` is what cloning and distillation share, `demonstrations/` reads recorded episodes,
`preference/` has rewards from preferences.

May import: core and the layers below it, not `external`. A learner is a folder here and a row in `config/tables.py`.
Read `policy.py` first, then `learner.py`, the protocol, then `ppo/ppo.py`; `engine.py` has the gradient steps.
"""
