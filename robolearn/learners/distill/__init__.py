"""Distillation, `learner=distill`: a policy learned from a teacher that observes more.

May import: `imitation`, and what it may. Read `distill.py` first.
"""
