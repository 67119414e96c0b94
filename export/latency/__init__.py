"""How long a control step takes on an export target. Read `latency.py` first; `picture.py` draws it."""
