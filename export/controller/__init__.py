"""The controller: everything that runs on the robot's computer in a control step, as one ONNX graph.

`module` builds it from the task's own functions and the trained policy; `graph` exports it. May import `core`, `tasks`
and `learners`. Read `module` first.
"""
