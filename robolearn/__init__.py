"""RoboLearn: train robot policies on thousands of simulated robots, prove them, ship them."""

import os

from robolearn import moved

__version__ = "0.1.0"

# Must be set before torch loads its OpenMP. By default OpenMP threads spin for a while after each parallel region and
# take the cores from the simulator's threads, and from other processes: beside another busy process a training was
# measured up to 17 times slower without this. A short spin (some microseconds) saves the wake-up between two regions.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

moved.install()
