"""Direct preference optimization: a policy learns from compared segments, without a reward in between.

May import what `robolearn.learners` may. Read `dpo.py`.
"""
