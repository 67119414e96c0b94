"""`robolearn bench`: how fast this machine simulates, acts and learns. Read `bench.py` first."""
