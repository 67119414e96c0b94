"""`robolearn sim --suite`: scenarios with gates, for CI. Read `suite.py` first, then `spec.py`.

May import: what commands may. `spec.py` reads the YAML file, `case.py` simulates a scenario on a backend in a worker
process, `gates.py` judges, `baseline.py` compares with a baseline, `failures.py`
keeps replays and videos, `output.py` writes tables and reports.
"""
