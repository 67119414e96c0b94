"""Export of policies that were trained in external environments. Read `export.py` first."""
