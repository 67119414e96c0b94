"""`robolearn workflow`: train -> evaluate -> export -> simulate, as files of OSMO, Slurm or KubeRay, or run here.

`steps.py` states the steps and their commands, `scripts.py` writes them as bash; `osmo.py`, `slurm.py` and `kuberay.py`
wrap those in an engine's files, each beside the rules that the files are checked against (`*_rules.py`); `local.py`
runs the steps. May import what `robolearn.commands` may. Read `steps.py` first.
"""
