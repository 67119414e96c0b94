"""One file or folder a command: eval, sim, play, report, robot, bench, sweep, plan, workflow, doctor, grad-check.
`train.py` adds films to `training/train.py`.

May import: export, views and the layers below them. Each has one entry function, which `cli.py` calls; the options of
export and deploy are in `export.py`, of plan and workflow in `cluster.py`. `exits.py` turns exceptions into exit codes.
Read `evaluate.py` first.
"""
