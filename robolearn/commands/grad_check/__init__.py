"""`robolearn grad-check`: checks gradients through a simulator by finite differences. Read `grad_check.py` first."""
