"""Errors of the sensors themselves, drawn at each reset: an IMU mounted askew, offsets of its gyro and of encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from robolearn.core.env_state import Named
from robolearn.core.noise import drawn_of_agents
from robolearn.envs.state import State, Tensor, quat_multiply, quat_rotate_inverse
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.sensing import SENSOR_ERRORS
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.task import Task

READ_BY = {"imu_tilt": ("quat", "gyro"), "imu_bias": ("gyro",), "encoder_bias": ("joint_pos",)}
"""The sensors that have each error; `map_shift` and `map_lift` are of those that are read from a map."""


class SensorErrors:
    """What the robot measures in place of the truth.

    imu_tilt: the IMU's axes are those of the base turned by a small rotation, about any axis; its orientation and
    angular velocity are of its own axes. imu_bias: an offset of each axis of the gyro. encoder_bias: an offset of each
    joint's position; the motor's controller reads the same encoder, so a joint comes to rest that far below its target.
    map_shift, map_lift: the robot takes itself to be so far from where it is on its map of the ground.

    Its state is a node of the EnvState, by the name in `Task.randomize`: `imu_tilt` (N, 3) rotation vector [rad],
    `imu_bias` (N, 3) [rad/s], `encoder_bias` (N, J) [rad or m], `map_shift` (N, 2) and `map_lift` (N, 1) [m].
    """

    def __init__(self, task: Task, robot: RobotConstants, agents: int) -> None:
        """`agents` is the number of those of a world."""
        self.task, self.robot, self.agents = task, robot, agents
        self.ranges = {name: task.randomize[name] for name in SENSOR_ERRORS if name in task.randomize}
        """Range of each error by name."""
        self._widths = {
            "imu_tilt": 3,
            "imu_bias": 3,
            "encoder_bias": len(robot.home),
            "map_shift": 2,
            "map_lift": 1,
        }
        kinds = [actuator.kind == "position" for actuator in robot.spec.actuators]
        self._servos = torch.tensor(kinds, dtype=torch.float32, device=robot.home.device)
        self._others: tuple[Sensor, ...] = ()
        self._task_state: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """Whether any sensor has an error."""
        return bool(self.ranges)

    def require(self, sensors: tuple[str, ...], task_state: tuple[str, ...]) -> None:
        """State which `sensors` and which `task_state` the policy depends on.

        Raises:
            ConfigError: an error would have no effect; it is named.
        """
        maps = tuple(s.name for s in self.task.all_sensors() if s.of_map)
        for name in self.ranges:
            acts = name == "encoder_bias" and bool(self._servos.any())
            readers = READ_BY.get(name, maps)
            if not acts and not set(readers) & set(sensors):
                what = " or ".join(readers) or "map of the ground"
                raise ConfigError(
                    f"randomize.{name}: the policy reads no {what}, so it has no effect; leave it out"
                )
        computed = (s for s in self.task.all_sensors() if s.compute is not None)
        self._others = tuple(s for s in computed if s.name in sensors)
        self._task_state = task_state

    def empty(self, num_envs: int, device: torch.device) -> Named:
        """No errors."""
        return {name: torch.zeros(num_envs, self._widths[name], device=device) for name in self.ranges}

    def draw(self, random: Random, num_envs: int, level: Tensor | None) -> Named:
        """The errors of new episodes, at `level` (N,) of the curriculum `randomize`."""
        out = {}
        for name, (low, high) in self.ranges.items():
            if name == "imu_tilt":
                axis = drawn_of_agents(random.randn, num_envs, 3, self.agents)
                axis = axis / axis.norm(dim=1, keepdim=True).clamp(min=1e-9)
                angle = drawn_of_agents(random.rand, num_envs, 1, self.agents)
                out[name] = (low + (high - low) * angle) * axis
            else:
                part = drawn_of_agents(random.rand, num_envs, self._widths[name], self.agents)
                out[name] = low + (high - low) * part
        return out if level is None else {k: v * level.clamp(max=1.0)[:, None] for k, v in out.items()}

    def sensed(self, state: State, errors: Named) -> State:
        """The State as the robot's own sensors measure it; what others measure, such as a camera, stays."""
        if not errors:
            return state
        robot = state.robot
        changes: dict[str, Any] = {}
        if "imu_tilt" in errors:
            tilt = rotation(errors["imu_tilt"])
            changes["base_quat"] = quat_multiply(robot.base_quat, tilt)
            changes["base_ang_vel"] = quat_rotate_inverse(tilt, robot.base_ang_vel)
        if "imu_bias" in errors:
            changes["base_ang_vel"] = changes.get("base_ang_vel", robot.base_ang_vel) + errors["imu_bias"]
        if "encoder_bias" in errors:
            changes["joint_pos"] = robot.joint_pos + errors["encoder_bias"]
        mapped = self._on_map(state, errors)
        others = {s.name: s(mapped if s.of_map else state) for s in self._others}
        return replace(
            state,
            entities={**state.entities, "robot": replace(robot, **changes)},
            sensors={**state.sensors, **others},
        )

    def _on_map(self, state: State, errors: Named) -> State:
        """The State with the base where the robot takes it to be on its map."""
        place = state.robot.base_pos
        if "map_shift" in errors:
            place = torch.cat((place[:, :2] + errors["map_shift"], place[:, 2:]), dim=1)
        if "map_lift" in errors:
            place = torch.cat((place[:, :2], place[:, 2:] + errors["map_lift"]), dim=1)
        if place is state.robot.base_pos:
            return state
        return replace(state, entities={**state.entities, "robot": replace(state.robot, base_pos=place)})

    def known(self, state: State, errors: Named) -> State:
        """The State with the errors among its parameters, (N,) each, for the critic."""
        if not errors:
            return state
        axes: dict[str, Sequence[str]] = {**dict.fromkeys(errors, "xyz"), "map_shift": "xy", "map_lift": "z"}
        axes["encoder_bias"] = self.robot.spec.joints
        columns = {
            f"{name}/{axis}": errors[name][:, i] for name in errors for i, axis in enumerate(axes[name])
        }
        return replace(state, params={**state.params, **columns})

    def advanced(self, state: State, errors: Named, ctx: Context) -> Named:
        """The task state after one more step; that which the policy depends on by what the sensors measure."""
        new = self.task.advance(state, ctx)
        if not errors or not self._task_state:
            return new
        measured = self.task.advance(self.sensed(state, errors), ctx)
        return {**new, **{name: measured[name] for name in self._task_state}}

    def reached(self, targets: Tensor, errors: Named) -> Tensor:
        """Joint targets (N, A) in true joint positions: a position actuator comes to rest where its encoder reads the
        target."""
        if "encoder_bias" not in errors:
            return targets
        return targets - errors["encoder_bias"][:, self.robot.actuated] * self._servos


def rotation(vector: Tensor) -> Tensor:
    """Quaternions (N, 4) wxyz of rotation vectors (N, 3) [rad]: cos(a/2), and the axis times sin(a/2)."""
    half = vector.norm(dim=1, keepdim=True) / 2
    # sin(a/2) / a, 1/2 at a = 0: torch.sinc(x) is sin(pi x) / (pi x).
    return torch.cat((half.cos(), 0.5 * vector * torch.sinc(half / torch.pi)), dim=1)
