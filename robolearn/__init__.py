"""RoboLearn: train robot policies on thousands of simulated robots, prove them, ship them."""

__version__ = "0.1.0"
