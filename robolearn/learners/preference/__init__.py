"""Rewards from preferences: answers to which of two segments of behaviour is better.

May import what `robolearn.learners` may. Read `folder.py` first, the files on disk, then `ensemble.py`, the model of
the reward, then `rewards.py`, which gives a learner's batches its rewards.
"""
