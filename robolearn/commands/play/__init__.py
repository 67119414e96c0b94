"""`robolearn play`. Read `play.py` first; `external.py` records third-party environments, `renderer.py` others."""
