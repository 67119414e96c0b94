"""Models of motors that a simulator has not: delay, controller, torque-speed curve, learned networks.

`model.py` is what a robot.yaml says of a motor, `layer.py` the torque as a function of tensors, `network.py` learned
motors, `backend.py` a Backend whose motors are simulated by that function, one physics substep at a time.
Read `model.py` first, then `layer.py`. May import what `envs` may.
"""
