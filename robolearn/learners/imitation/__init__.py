"""What cloning (`learner=clone`) and distillation (`learner=distill`) share: both fit a policy to given actions.

May import: core and the layers below it, and the shared parts of `learners`. Read `learner.py` first: the networks and
the state of both learners; `update.py` has their gradient steps, `losses.py` their losses.
"""
