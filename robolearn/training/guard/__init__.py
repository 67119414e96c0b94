"""The guard, `robolearn train ... guard=on`: sees reward hacking, rolls back and goes on with a change.

Read `guard.py` first: what it decides after each iteration, its state and its checkpoints. `signals.py` measures, in
every step and on the device; `detectors.py` says what is suspicious and what is confirmed; `remedies.py` which change
follows, and applies one that a kill has cut off; `evidence.py` writes into RUN/guard/.

May import: what `robolearn.training` may.
"""
