"""`robolearn play`. Read `play.py` first; `external.py` records third-party environments.

May import: simulation and the layers below it. Frames of RoboLearn's tasks are drawn by `robolearn.simulation.film`.
"""
