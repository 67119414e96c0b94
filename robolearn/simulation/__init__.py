"""A finished policy in simulation: whole episodes counted, scripts of commands and pushes, pictures and videos.

May import: training and the layers below it; commands, views and export import it. Read `episodes.py` first, then
`script.py` (commands and pushes by time), `trial.py` and `measures.py` (what `sim --suite` measures), `side.py` and
`sim2sim.py` (simulators compared), `film.py` and `tour.py` (videos). `excite.py` and `sysid/` are about a robot without
a policy: a motion to record, and what the recording says about its joints.
"""
