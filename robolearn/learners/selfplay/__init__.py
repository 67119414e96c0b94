"""Self-play of two agents: in a share of the worlds, the opponent is a past policy of the same training.

It may import what learners share, and core. `ppo` uses it. Read `self_play.py` first, then `pool.py`; `rating.py` has
the formulas of the ratings.
"""
