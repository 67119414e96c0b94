"""Isaac Lab 3 (kit-less, Newton with MuJoCo Warp) behind the backend interface.

Read `backend.py` first; `bridge.py` is the one file that knows Isaac Lab's names.
"""
