"""The program on the robot's computer: numpy and onnxruntime (or tensorrt), nothing else.

`robolearn export` joins the modules of this folder into one file, the `runtime.py` of a bundle. So they import
neither torch nor any other RoboLearn module, and each other only as `from robolearn.runtime.x import name`. Read
`robot.py` first.
"""
