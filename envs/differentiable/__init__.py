"""Differentiable physics: gradients of rewards flow through the simulator to the policy.

Read `backend.py` first, then `engine.py`. `own.py` is the default engine, `newton.py` runs on Newton's solver.
"""
