"""`robolearn grad-check`: gradients through a simulator beside finite differences. Read `grad_check.py` first."""
