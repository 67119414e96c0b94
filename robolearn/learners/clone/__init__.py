"""Behaviour cloning, `learner=clone`: a policy learned from demonstrations.

May import: `imitation`, `demonstrations`, and what they may. Read `clone.py` first.
"""
