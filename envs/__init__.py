"""Simulators behind one interface, and the robots in them; one folder per simulator.

May import: errors, files, runtime, config. A backend is a folder and a row in `config/tables.py`.
Read `state.py` and `backend.py` first, then `mujoco/backend.py`. `robot.py` describes a robot,
`derive.py` says how from its file.
"""
