"""States and contexts built by hand, for tests of single terms."""

from __future__ import annotations

import torch

from robolearn.envs import mjcf
from robolearn.envs.state import State, robot_entity
from robolearn.tasks.mdp.context import Context, RobotConstants
from tests.factories import load_robot

CPU = torch.device("cpu")


def standing(name: str) -> tuple[State, Context]:
    """One built-in robot at rest in its home pose, with the joint limits of its MJCF, after a zero action."""
    robot = load_robot(name)
    entity = robot_entity(robot, 1, CPU)
    entity.base_pos[:, 2] = robot.home_height
    entity.joint_pos[:] = torch.tensor(robot.home)
    action, time = torch.zeros(1, len(robot.actuators)), torch.zeros(1)
    constants = RobotConstants.of(robot, mjcf.joint_limits(robot), CPU)
    ctx = Context(
        constants, 0.02, action, action.clone(), torch.zeros(1, 0), time, time, time + torch.inf, {}
    )
    return State({"robot": entity}), ctx


def rewards(task, state: State, ctx: Context) -> dict[str, float]:
    """Value of every reward term of a task, unweighted."""
    return {name: term(state, ctx).item() for name, term in task.reward_terms().items()}


def ends(task, state: State, ctx: Context) -> list[str]:
    """Names of the terminations that are set."""
    return [name for name, term in task.termination_terms().items() if term(state, ctx).item()]


def slopes(task, state: State, ctx: Context, field: str) -> torch.Tensor:
    """Gradient of the sum of all weighted reward terms with respect to a field of the robot's state."""
    x = getattr(state.robot, field).requires_grad_()
    total = sum(
        task.reward_weights()[name] * term(state, ctx).sum() for name, term in task.reward_terms().items()
    )
    (gradient,) = torch.autograd.grad(total, x)
    return gradient
