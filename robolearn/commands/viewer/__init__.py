"""The browser viewer of `robolearn play`.

Read `viewer.py` first: the loop, the only thread that touches the simulation. `source.py`: where actions come from.
`drawing.py`: State into viser's scene. `panel.py`, `operate.py`, `plots.py`, `recording.py`: the controls. `server.py`:
port and address. May import what other commands may; viser and mjviser are imported where a viewer starts.
"""
