"""One file or folder a command: eval, sim, play, robot, bench, grad-check (`train` is `training/train.py`).

May import: training and the layers below it. Each has one entry function, which `cli.py` calls; `exits.py` turns
exceptions into exit codes. Read `evaluate.py` first.
"""
