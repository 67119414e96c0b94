"""The training loop, and the parts of a run: how it is built, checkpoints, run folders, metrics, the panel, the guard.

May import: learners, external and the layers below them. Read `train.py` first, then `checkpoint.py`.
"""
