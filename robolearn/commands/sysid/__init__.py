"""`robolearn sysid`: parameters of a robot from recorded joint trajectories.

`command.py` has the options, `run.py` the order of the work, `outputs.py` the files for the robot and its
randomization, and `page.py` the report, which `commands.report` draws. The work is in `robolearn.simulation.sysid`.
"""
