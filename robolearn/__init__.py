"""RoboLearn: train robot policies on thousands of simulated robots, prove them, ship them."""

import os

from robolearn import moved

__version__ = "0.1.0"

# Must be set before torch loads its OpenMP. By default OpenMP threads spin for a while after each parallel
# region and take the cores from the simulator's threads, and from whatever else runs: beside another busy
# process a training was measured up to 17 times slower without this.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

moved.install()
