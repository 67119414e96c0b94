"""Isaac Lab 3 (kit-less, Newton with MuJoCo Warp) behind the backend interface.

Read `backend.py` first; `bridge.py` is the only file that uses Isaac Lab's API.
"""
