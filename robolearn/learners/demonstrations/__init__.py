"""Recorded episodes to learn from: one value, `Demonstrations`, and a reader for each file format.

May import: core and the layers below it, not `ppo`, `clone` or `distill`. Read `demonstrations.py` first, then
`npz.py`, our own format; `hdf5.py` and `lerobot.py` read those of other projects. docs/demonstrations.md describes all
of them.
"""
