"""System identification: a robot's joints, gains, delay and masses from recorded joint trajectories.

MuJoCo's own `mujoco.sysid` holds the parameters, computes the residuals and solves the least squares. What it lacks is
built around it:

- It delays measured signals by shifting the prediction, and rolls every column of a Jacobian out with the same
  controls. The delay of a command, a fraction of a step, and a servo that reads a biased encoder are in the
  `custom_rollout` of `problem`.
- A rollout's sensor data belong to the beginning of the step whose end has their time stamp, an error of one step in a
  delay; `problem` reads positions and velocities from the state instead, and interpolates them at the stamps.
- It takes the stamps as true. `log` tells stamps with noise from a regular clock, and how true they are is a nuisance
  parameter.
- Its Jacobian is a rollout for each parameter; `problem` perturbs parameters of limbs that do not touch at once.
- It warns of a condition number. `information` names the parameters that a log cannot tell, and why.
- `calculate_intervals` assumes white residuals of one variance. `solve` weights by the noise of each signal, the noise
  of the stamps included, and widens the intervals where residuals are correlated in time.
"""
