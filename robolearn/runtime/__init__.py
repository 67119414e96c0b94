"""What runs on the robot's computer, with numpy and onnxruntime (or tensorrt) alone.

The parts are modules here and are tested as such; `robolearn export` joins them into the one file `runtime.py` that
travels with a bundle. So nothing in this folder imports anything of ours from outside of it, nor torch, and its
modules import each other only as `from robolearn.runtime.x import name`.
"""
