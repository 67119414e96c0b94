"""Modules of scripts/compare_mjlab.py: one process per side, and the robot and settings exported from mjlab."""
