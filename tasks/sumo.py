"""Two ants in a ring: who leaves it, or is turned over, has lost. A task for self-play.

Each ant sees where the other one is and how it moves, and where the ring's centre is, as a tracker above the ring
would tell it. Both are rewarded alike, each from its own side: what one gains by a win or by a push, the other loses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Place, Ring, Scene
from robolearn.envs.state import Initial, InitialState, State, Tensor, quat_rotate, quat_rotate_inverse
from robolearn.tasks.ant_run import ACTION_SCALE
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation, projected_gravity
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

OPPONENT = "opponent"
LEGS = ("l_front", "r_front", "l_hind", "r_hind")
BODIES = ("torso", *(f"{leg}_{part}" for leg in LEGS for part in ("leg", "foot")))
"""Everything of an ant."""
LEAST = 1e-3
"""Distance below which a direction is not normalized [m]."""


def _in_own_axes(state: State, vector: Tensor) -> Tensor:
    """A vector (N, 3) in world axes in those of the ant's own torso."""
    return quat_rotate_inverse(state.robot.base_quat, vector)


def _velocity(state: State, name: str) -> Tensor:
    """Velocity of a torso in world axes (N, 3) [m/s]."""
    ant = state.entities[name]
    return quat_rotate(ant.base_quat, ant.base_lin_vel)


def _facing(state: State, name: str) -> Tensor:
    """Direction (N, 3) in which an ant faces, in world axes: the first column of the rotation matrix."""
    w, x, y, z = state.entities[name].base_quat.unbind(-1)
    return torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)), dim=1)


def _seen(state: State) -> Tensor:
    place = state.entities[OPPONENT].base_pos - state.robot.base_pos
    parts = (place, _velocity(state, OPPONENT), _facing(state, OPPONENT))
    return torch.cat([_in_own_axes(state, part) for part in parts], dim=1)


def _own_place(state: State) -> Tensor:
    return torch.cat((_in_own_axes(state, -state.robot.base_pos), state.robot.base_lin_vel), dim=1)


SEEN = Sensor(
    "opponent",
    "m, m/s and 1: place of the opponent's torso from the own one, its velocity, and the direction it faces",
    "axes of the base link",
    compute=_seen,
)
"""What a camera or a tracker tells of the opponent."""

PLACE = Sensor(
    "place",
    "m and m/s: place of the ring's centre, on the floor, from the own torso, and the torso's own velocity",
    "axes of the base link",
    compute=_own_place,
)
"""What a tracker tells an ant of itself."""


def touched(state: State) -> Tensor:
    """Net force of the opponent on the ant, in world axes (N, 3) [N]."""
    return state.robot.contacts[OPPONENT].force.sum(dim=1)


def _outward(state: State, name: str) -> Tensor:
    """Speed of an ant's torso away from the ring's centre (N,) [m/s]."""
    place = state.entities[name].base_pos[:, :2]
    away = place / place.norm(dim=1, keepdim=True).clamp(min=LEAST)
    return (away * _velocity(state, name)[:, :2]).sum(dim=1)


def drive(state: State, ctx: Context) -> Tensor:
    """Speed of the opponent away from the ring's centre, less the own one (N,) [m/s]: of both ants the sum is 0."""
    return _outward(state, OPPONENT) - _outward(state, ROBOT)


def approach(state: State, ctx: Context) -> Tensor:
    """Own speed toward the opponent (N,) [m/s]."""
    way = (state.entities[OPPONENT].base_pos - state.robot.base_pos)[:, :2]
    return (way * _velocity(state, ROBOT)[:, :2]).sum(dim=1) / way.norm(dim=1).clamp(min=LEAST)


OWN = (
    "base_ang_vel",
    "projected_gravity",
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
    Observation("opponent_pos", lambda s, c: SEEN(s)[:, :3], "vector", "m, from the own torso, own axes"),
    Observation("opponent_vel", lambda s, c: SEEN(s)[:, 3:6], "vector", "m/s, own axes"),
    Observation("opponent_facing", lambda s, c: SEEN(s)[:, 6:], "vector", "1, own axes"),
    Observation("ring_centre", lambda s, c: PLACE(s)[:, :3], "vector", "m, from the own torso, own axes"),
    Observation("own_vel", lambda s, c: PLACE(s)[:, 3:], "vector", "m/s, own axes"),
)
BOTH = (
    *OWN,
    "joint_torque",
    "foot_height",
    "foot_force",
    Observation("touched", lambda s, c: _in_own_axes(s, touched(s)), "vector", "N, own axes"),
    # An ant and its mirror image: the opponent is mirrored, too, by its own left and right.
    Observation(
        "opponent_up",
        lambda s, c: projected_gravity(s.entities[OPPONENT].base_quat),
        "vector",
    ),
    Observation("opponent_ang_vel", lambda s, c: s.entities[OPPONENT].base_ang_vel, "pseudovector"),
    Observation("opponent_joint_pos", lambda s, c: s.entities[OPPONENT].joint_pos - c.robot.home, "joints"),
    Observation("opponent_joint_vel", lambda s, c: s.entities[OPPONENT].joint_vel, "joints"),
    Observation("time", lambda s, c: c.episode_time[:, None], "same", "s, since the start"),
)


@dataclass
class Sumo(Task):
    """Two ants push each other out of a ring.

    An ant whose torso leaves the ring, or that is turned over, has lost, and the bout ends; out of time it is a draw.
    The metric `won` is 1 for a win, 0.5 for a draw and 0 for a loss, at the end of a bout. It is 0.5 on average where
    both ants have one policy: progress shows in games against other policies, such as past ones.
    """

    robot: str = "sumo_ant"
    """Name of the robot."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Length of a bout [s]; out of time it is a draw."""
    ring: float = field(default=1.5, metadata={"min": 0.8, "max": 100.0})
    """Radius of the ring [m]."""
    upright: float = field(default=0.0, metadata={"min": -1.0, "max": 1.0})
    """Vertical part of the torso's up axis below which an ant is turned over."""
    start_distance: tuple[float, float] = field(default=(0.9, 1.3), metadata={"min": 0.85, "max": 100.0})
    """Range of the distance of the two torsos at the start, across the ring's centre [m]."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "outcome": reward(Sumo.outcome, 10.0),
            "drive": reward(drive, 2.0),
            "approach": reward(approach, 1.0),
            "tilt": reward(terms.tilt, -0.5),
            "effort": reward(terms.effort, -0.02),
            "action_rate": reward(terms.action_rate, -0.02),
        }
    )
    """Function, weight per second and parameters of each reward; of `outcome` the weight is for a whole bout."""
    terminations: dict[str, Termination] = field(default_factory=lambda: {"lost": ends(Sumo.lost)})
    """Function and parameters of each condition that ends an episode without bootstrap."""

    agents: ClassVar[tuple[str, ...]] = (ROBOT, OPPONENT)
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 256,
        "max_iterations": 400,
        "learner.num_steps": 24,
        "learner.minibatch_size": 3072,
        "learner.max_learning_rate": 3e-3,
        "learner.desired_kl": 0.02,
        "learner.max_kl": 0.1,
        "learner.gamma": 0.99,
        "learner.self_play": 0.5,
        "learner.pool_interval": 10,
        "learner.mean_opponents": 0.5,
        "learner.actor_hidden": (128, 128),
        "learner.critic_hidden": (256, 128),
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {"policy": OWN, "critic": BOTH}
    sensors: ClassVar[tuple[Sensor, ...]] = (SEEN, PLACE)
    symmetric: ClassVar[bool] = True

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped, or starts outside of the ring."""
        super().validate()
        low, high = self.start_distance
        if not low <= high < 2 * self.ring:
            raise ValueError(
                f"start_distance=[{low:g},{high:g}] must be a range, low to high, below the diameter of the ring "
                f"(ring={self.ring:g})"
            )

    def scene(self, robot: Robot) -> Scene:
        """Two ants on a floor, and what each feels of the other."""
        return Scene(
            {ROBOT: robot, OPPONENT: robot},
            contacts={
                ROBOT: {OPPONENT: Contact(BODIES, OPPONENT)},
                OPPONENT: {OPPONENT: Contact(BODIES, ROBOT)},
            },
            places={OPPONENT: Place((1.0, 0.0, robot.home_height))},
            floor=True,
            ring=Ring(self.ring),
        )

    def out(self, state: State, name: str) -> Tensor:
        """Whether an ant is outside of the ring, or turned over (N,) bool."""
        ant = state.entities[name]
        up = -projected_gravity(ant.base_quat)[:, 2]
        return (ant.base_pos[:, :2].norm(dim=1) > self.ring) | (up < self.upright)

    def lost(self, state: State, ctx: Context) -> Tensor:
        """The ant has lost (N,) bool."""
        return self.out(state, ROBOT)

    def outcome(self, state: State, ctx: Context) -> Tensor:
        """1 over the control period for a win, -1 for a loss, 0 where both lose at once or nobody does (N,) [1/s]."""
        return (self.out(state, OPPONENT).float() - self.out(state, ROBOT).float()) / ctx.dt

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, 8) [rad]: home + scale x action."""
        robot = ctx.robot
        return robot.home[robot.actuated] + robot.per_actuator(ACTION_SCALE) * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """Two ants near their home pose, a few cm above the floor, roughly face to face across the ring's centre."""
        # By square roots: the rounding of sin and cos depends on where in the batch a row stands.
        turn = random.randn(num_envs, 2)
        turn = turn / turn.norm(dim=1, keepdim=True).clamp(min=1e-9)
        cos, sin = turn.unbind(dim=1)
        half = random.uniform(*self.start_distance, num_envs) / 2
        return {
            ROBOT: self._start(-half, cos, sin, 1.0, ctx, random),
            OPPONENT: self._start(half, cos, sin, -1.0, ctx, random),
        }

    def _start(
        self, along: Tensor, cos: Tensor, sin: Tensor, faces: float, ctx: Context, random: Random
    ) -> InitialState:
        """An ant at `along` (N,) [m] on the line through the centre of direction (cos, sin), (N,) each, that it faces
        along, 1, or against, -1."""
        robot, n = ctx.robot, len(along)
        joints, zeros = len(robot.spec.joints), torch.zeros_like(along)
        height = robot.spec.home_height + random.uniform(0.02, 0.04, n)
        # Half the angle of (cos, sin), and half of a small one beside it.
        w = ((1 + faces * cos) / 2).clamp(min=0.0).sqrt()
        z = ((1 - faces * cos) / 2).clamp(min=0.0).sqrt() * torch.where(faces * sin < 0, -1.0, 1.0)
        aside = random.uniform(-0.15, 0.15, n)
        w, z = w - aside * z, z + aside * w
        size = (w * w + z * z).sqrt()
        return InitialState(
            base_pos=torch.stack((along * cos, along * sin, height), dim=1),
            base_quat=torch.stack((w / size, zeros, zeros, z / size), dim=1),
            base_lin_vel=random.uniform(-0.1, 0.1, n, 3),
            base_ang_vel=random.uniform(-0.1, 0.1, n, 3),
            joint_pos=robot.home + random.uniform(-0.1, 0.1, n, joints),
            joint_vel=random.uniform(-0.2, 0.2, n, joints),
        )

    def success(self, state: State, ctx: Context) -> Ratio:
        """`won`."""
        return self.won(state, ctx)

    def won(self, state: State, ctx: Context) -> Ratio:
        """The score of bouts that end in this step: 1 for a win, 0.5 for a draw, 0 for a loss (N,)."""
        mine, theirs = self.out(state, ROBOT).float(), self.out(state, OPPONENT).float()
        late = (ctx.episode_time > self.episode_length_s - ctx.dt / 2).float()
        ended = torch.maximum(torch.maximum(mine, theirs), late)
        return Ratio((1 + theirs - mine) / 2 * ended, ended)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """The score of finished bouts, the share of them that somebody has won, how often the ants touch, and
        how fast they are [m/s]."""
        won = self.won(state, ctx)
        return {
            "decided": Ratio((2 * won.total - won.weight).abs(), won.weight),
            "touching": (touched(state).norm(dim=1) > 1.0).float(),
            "speed": _velocity(state, ROBOT)[:, :2].norm(dim=1),
            "won": won,
        }
