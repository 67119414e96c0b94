"""`robolearn play`. Read `play.py` first; `external.py` films other people's environments, `renderer.py` draws ours."""
