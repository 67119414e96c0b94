"""Parts of a robot as robots of their own: the two arms of one machine, each an agent of a task.

    left, right = part(robot, "left_"), part(robot, "right_")
    Scene({ROBOT: left, "partner": right, ...})

In a scene with several parts of a robot, that robot is simulated once, as a whole. Each part is an entity like any
other: its joints, bodies, frames, contacts and joint targets are those whose names in the robot's file begin with its
prefix, and are called by the rest of the name, so that the same task fits each of them. In a scene with one part, that
part is simulated by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mujoco
import numpy as np

from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, did_you_mean, listing


@dataclass(frozen=True)
class Part:
    """Where a part is in its robot."""

    whole: Robot
    """The robot that it is a part of."""
    prefix: str
    """What the names of its joints, bodies and sites begin with in the robot's file."""
    root: str
    """Its one body, without the prefix, that holds all others; empty where it has several such bodies."""
    position: tuple[float, float, float]
    """Of that body in the robot, all joints at 0 [m]; of a robot with a free base, of the base."""
    quat: tuple[float, float, float, float]
    """Its orientation there, wxyz."""
    limits: tuple[tuple[float, float], ...]
    """Lowest and highest position of each joint [rad or m]; infinite without a limit."""


def part(robot: Robot, prefix: str) -> Robot:
    """The part of a robot whose names begin with `prefix`, as a robot of its own, with names without it.

    Its base is the robot's free base; of a fixed robot, the one body of the part that holds all its others, which does
    not move.

    Raises:
        ConfigError: no joint, or none with an actuator, has such a name; the bodies of the part are not one tree on a
            part of the robot that cannot move; or the robot is a part itself.
    """
    where = f"part {prefix!r} of robot {robot.name!r}"
    if robot.part is not None:
        raise ConfigError(f"{where}: it is a part itself; take the parts of {robot.part.whole.name!r} whole")
    names = [name for name in robot.joints if name.startswith(prefix)]
    if not names:
        raise ConfigError(
            f"{where}: no joint has a name that begins with {prefix!r}{did_you_mean(prefix, _beginnings(robot))} "
            f"(joints: {listing(robot.joints, 24)})"
        )
    if prefix and prefix in names:
        raise ConfigError(f"{where}: {prefix!r} is all of a joint's name; leave some of it for the part")
    actuators = tuple(a for a in robot.actuators if a.joint.startswith(prefix))
    if not actuators:
        raise ConfigError(f"{where}: no joint of it has an actuator, so nothing moves it ({listing(names)})")
    if robot.base is not None and prefix and robot.base.startswith(prefix):
        raise ConfigError(
            f"{where}: the free base {robot.base} is in it; all parts share the base, rename it"
        )
    model = mjcf.build_model(robot)
    root, position, quat = _mount(robot, prefix, model, where)

    def own(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(value.removeprefix(prefix) for value in values if value.startswith(prefix))

    homes = dict(zip(robot.joints, robot.home, strict=True))
    return replace(
        robot,
        feet=own(robot.feet),
        bodies=own(robot.bodies),
        joints=own(robot.joints),
        home=tuple(homes[name] for name in names),
        actuators=tuple(replace(a, joint=a.joint.removeprefix(prefix)) for a in actuators),
        soles={k.removeprefix(prefix): v for k, v in robot.soles.items() if k.startswith(prefix)},
        apart=(),
        mirror=None,
        part=Part(robot, prefix, root, position, quat, tuple(_limits(model, name) for name in names)),
    )


def _beginnings(robot: Robot) -> list[str]:
    """What the names of joints begin with, up to the first underscore."""
    return sorted({f"{name.partition('_')[0]}_" for name in robot.joints if "_" in name})


def _limits(model: mujoco.MjModel, name: str) -> tuple[float, float]:
    joint = model.joint(name)
    low, high = joint.range if model.jnt_limited[joint.id] else (-np.inf, np.inf)
    return float(low), float(high)


def _mount(
    robot: Robot, prefix: str, model: mujoco.MjModel, where: str
) -> tuple[str, tuple[float, float, float], tuple[float, float, float, float]]:
    """The body that holds a part, without the prefix, and where its base is."""
    if not prefix:
        place = (0.0, 0.0, robot.home_height if robot.base is not None else 0.0)
        return "", place, (1.0, 0.0, 0.0, 0.0)
    names = [model.body(i).name for i in range(model.nbody)]
    roots = [
        i
        for i, name in enumerate(names)
        if name.startswith(prefix) and not names[model.body_parentid[i]].startswith(prefix)
    ]
    root = names[roots[0]].removeprefix(prefix) if len(roots) == 1 else ""
    if robot.base is not None:
        return root, (0.0, 0.0, robot.home_height), (1.0, 0.0, 0.0, 0.0)
    if len(roots) != 1:
        raise ConfigError(
            f"{where}: {len(roots)} bodies hold it ({listing([names[i] for i in roots]) or 'none'}); its bodies must "
            f"be one body whose name begins with {prefix!r} and what hangs on it"
        )
    above = int(model.body_parentid[roots[0]])
    if model.body_weldid[above] != 0:
        raise ConfigError(
            f"{where}: it hangs on {names[above]}, which moves; a part is fixed to what cannot move"
        )
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    body, (x, y, z) = roots[0], data.xpos[roots[0]].round(9).tolist()
    return root, (x, y, z), tuple(data.xquat[body].round(9).tolist())
