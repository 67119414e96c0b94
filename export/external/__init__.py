"""Exporting the policy of an environment that is not ours. Read `export.py` first."""
