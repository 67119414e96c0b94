"""Latency of a control step on an export target. Read `latency.py` first; `picture.py` draws it."""
