"""The training loop and what a run consists of: building it, checkpoints, folders, metrics, the panel.

May import: learners, external and what stands below them. Read `train.py` first, then `checkpoint.py`.
"""
