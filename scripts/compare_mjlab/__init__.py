"""The parts of scripts/compare_mjlab.py: a process for either side, and what is carried from one to the other."""
