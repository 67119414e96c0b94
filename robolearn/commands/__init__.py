"""One file or folder a command: eval, sim, play, bench, grad-check (`train` is `training/train.py`).

May import: training and what stands below it. Each has one entry function, which `cli.py` calls; `exits.py` turns what
they raise into exit codes. Read `evaluate.py` first.
"""
