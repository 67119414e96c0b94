"""A robot with two arms lifts a box that is too wide for one of them: each arm is an agent, and the hands press on the
box from both sides.

Neither arm sees the other: each knows its own joints, what its hand feels, where a camera sees the box, and how high
it is to be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch

from robolearn.envs.parts import part
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Object, Scene
from robolearn.envs.state import Initial, InitialState, State, Tensor, quat_rotate, quat_rotate_inverse
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Command, Drawn, require_ordered
from robolearn.tasks.mdp.context import Context, Random, once
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

PARTNER, BOX, PALM, HAND = "partner", "box", "palm", "hand"
SURFACE = 0.4
"""Height of the bench [m]."""
WIDE, EDGE = 0.3, 0.2
"""Length of the box from hand to hand, and its other edges [m]."""
MASS = 2.0
"""Of the box [kg]."""
PRESSED = 2.0
"""A hand presses on the box with more than this [N]."""
PRESS = {"shoulder_pitch": 1.191, "elbow_pitch": 1.58, "wrist_pitch": -1.2}
"""Joint targets with which the hands press on a box in the middle of the bench: 3 cm inside of it [rad]."""
LAST = 1.0
"""The end of an episode that decides whether the box is held up [s]."""


def _load(state: State) -> Tensor:
    robot = state.robot
    return quat_rotate_inverse(robot.base_quat, robot.contacts[BOX].force[:, 0])


def _box_place(state: State) -> Tensor:
    robot = state.robot
    return quat_rotate_inverse(robot.base_quat, state.entities[BOX].base_pos - robot.base_pos)


LOAD = Sensor(
    "load",
    "N, the force of the box on the hand",
    "axes of the arm's base: x to the other arm, z up",
    compute=_load,
)
"""A load cell in the hand."""
BOX_PLACE = Sensor(
    "box_place",
    "m, the middle of the box, from a camera",
    "axes and origin of the arm's base: x to the other arm, z up",
    compute=_box_place,
)
"""A camera above the bench."""


@dataclass
class HeightCommands(Command):
    """How high the box is to be."""

    height: tuple[float, float] = field(default=(0.1, 0.3), metadata={"min": 0.0, "max": 0.4})
    """Range of the height of its lower side above the bench [m]."""
    seconds: tuple[float, float] = field(default=(5.0, 5.0), metadata={"above": 0.0, "max": 1e6})
    """Range of a command's duration [s]; an episode has one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return ("height",)

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each column."""
        return ("m above the bench",)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each column."""
        return {"height": self.height}

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped."""
        require_ordered(self, ("height", "seconds"))

    def sample(self, num_envs: int, random: Random) -> Drawn:
        """Draw heights (N, 1) [m]."""
        return Drawn(
            random.uniform(self.height[0], self.height[1], num_envs, 1),
            random.uniform(*self.seconds, num_envs),
            {},
        )


def height(state: State) -> Tensor:
    """Height of the box above the bench (N,) [m], of its lower side where it is level."""
    return state.entities[BOX].base_pos[:, 2] - EDGE / 2 - SURFACE


@once
def tilt(state: State, ctx: Context) -> Tensor:
    """Sine of the angle between the box's upright and the vertical (N,)."""
    w, x, y, z = state.entities[BOX].base_quat.unbind(-1)
    return 2 * torch.hypot(w * y + x * z, y * z - w * x)


@once
def pressing(state: State, ctx: Context) -> Tensor:
    """Whether both hands press on the box (N,), 0 or 1."""
    hands = [state.entities[name].contacts[BOX].touching(PRESSED)[:, 0] for name in (ROBOT, PARTNER)]
    return (hands[0] & hands[1]).float()


def reach(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the palm to its side of the box (N,); see `manipulation.near`, `width` in [m]."""
    box, robot = state.entities[BOX], state.robot
    ahead = torch.zeros_like(box.base_pos)
    ahead[:, 0] = 1.0  # along the long edge of the box, and the way the arm faces
    edge, forward = quat_rotate(box.base_quat, WIDE / 2 * ahead), quat_rotate(robot.base_quat, ahead)
    side = box.base_pos - edge * (edge * forward).sum(dim=1, keepdim=True).sign()
    return arm.near((robot.frames[PALM].pos - side).norm(dim=1), width)


def squeeze(state: State, ctx: Context, force: Annotated[float, {"above": 0.0}]) -> Tensor:
    """How hard both hands press on the box (N,): 0.76 where the weaker one does with `force` [N], up to 1."""
    hands = [state.entities[name].contacts[BOX].force[:, 0].norm(dim=1) for name in (ROBOT, PARTNER)]
    return torch.tanh(torch.minimum(*hands) / force)


def at_height(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the box to the commanded height (N,); see `manipulation.near`, `width` in [m]."""
    return arm.near((height(state) - ctx.command[:, 0]).abs(), width)


@once
def lift(state: State, ctx: Context) -> Tensor:
    """How far the box is off the bench while both hands press on it (N,): 1 from 3 cm on."""
    return (height(state) / 0.03).clamp(0.0, 1.0) * pressing(state, ctx)


def level(state: State, ctx: Context, width: Annotated[float, {"above": 0.0}]) -> Tensor:
    """1 with the box level, 1/2 where the sine of its angle is `width`, of a box off the bench (N,); see `lift`."""
    return lift(state, ctx) / (1 + (tilt(state, ctx) / width).square())


def box_lost(state: State, ctx: Context, radius: Annotated[float, {"above": 0.0}]) -> Tensor:
    """The box lies on its side, or is further than `radius` [m] from the middle of the bench (N,) bool."""
    away = state.entities[BOX].base_pos[:, :2].norm(dim=1) > radius
    return away | (height(state) < -0.05) | (tilt(state, ctx) > 0.7)


OWN = (
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
    Observation("load", lambda s, c: LOAD(s) / 10.0, "vector", "10 N, in axes of the arm's base"),
    Observation("box_place", lambda s, c: BOX_PLACE(s), "vector", "m, from the arm's base and in its axes"),
    Observation(
        "height_command", lambda s, c: c.command, "same", "m, how high the box is to be above the bench"
    ),
)
BOX_ITEMS = (
    Observation("box_quat", lambda s, c: s.entities[BOX].base_quat, "same"),
    Observation("box_vel", lambda s, c: s.entities[BOX].base_lin_vel, "same"),
    Observation("box_ang_vel", lambda s, c: s.entities[BOX].base_ang_vel, "same"),
    Observation("to_height", lambda s, c: height(s)[:, None] - c.command, "same"),
    Observation("pressing", lambda s, c: pressing(s, c)[:, None], "same"),
)
PARTNER_ITEMS = (
    Observation("partner_joint_pos", lambda s, c: s.entities[PARTNER].joint_pos - c.robot.home, "same"),
    Observation("partner_joint_vel", lambda s, c: s.entities[PARTNER].joint_vel, "same"),
    Observation("partner_load", lambda s, c: s.entities[PARTNER].contacts[BOX].force[:, 0] / 10.0, "same"),
)


@dataclass
class Bimanual(Task):
    """A robot with two arms, an agent each, lifts a box between its hands to a commanded height and keeps it level.

    Solved: the metric `held_up` is at least 0.8: so many of the boxes are, on average over the last second of an
    episode, less than 3 cm from the commanded height and less than 6 degrees from level; one that is lost is not.
    """

    robot: str = "two_arms"
    """Name of the robot; the names of its arms begin with `left_` and `right_`."""
    episode_length_s: float = field(default=5.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Change of a joint's target for a unit action, from those with which the hands press on the box [rad]."""
    start_noise: float = field(default=0.1, metadata={"min": 0.0, "max": 0.2})
    """Largest distance of a joint from home at the start [rad]."""
    place_noise: float = field(default=0.03, metadata={"min": 0.0, "max": 0.05})
    """Largest distance of the box from the middle of the bench at the start, along and across [m]."""
    commands: HeightCommands | None = field(default_factory=HeightCommands)
    """How high the box is to be."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "joint_pos_rel": 0.005,
            "joint_vel_rel": 0.05,
            "load": 0.05,
            "box_place": 0.003,
        },
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "reach": reward(reach, 1.0, width=0.1),
            "squeeze": reward(squeeze, 1.0, force=30.0),
            "lift": reward(lift, 2.0),
            "height": reward(at_height, 3.0, width=0.15),
            "height_exact": reward(at_height, 4.0, width=0.03),
            "level": reward(level, 2.0, width=0.1),
            "action_rate": reward(terms.action_rate, -0.01),
            "joint_speed": reward(arm.joint_speed, -0.01),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"box_lost": ends(box_lost, radius=0.3)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    agents: ClassVar[tuple[str, ...]] = (ROBOT, PARTNER)
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 256,
        "max_iterations": 200,
        "learner.num_steps": 24,
        "learner.minibatch_size": 2048,
        "learner.num_epochs": 4,
        "learner.gamma": 0.98,
        "learner.max_learning_rate": 3e-3,
        "learner.desired_kl": 0.02,
        "learner.init_std": 0.6,
        "learner.entropy_coef": 0.003,
        "learner.actor_hidden": (64, 64),
        "learner.critic_hidden": (128, 128),
        "learner.activation": "tanh",
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": OWN,
        "critic": (*OWN, *BOX_ITEMS, *PARTNER_ITEMS),
        # For comparison: a critic that sees no more than the policy, without its noise.
        "own": OWN,
    }
    sensors: ClassVar[tuple[Sensor, ...]] = (LOAD, BOX_PLACE)

    def scene(self, robot: Robot) -> Scene:
        """The two arms of the robot, and a box on its bench between them."""
        box = Object(
            "box", (WIDE, EDGE, EDGE), mass=MASS, position=(0.0, 0.0, SURFACE + EDGE / 2), friction=0.8
        )
        return Scene(
            {ROBOT: part(robot, "left_"), PARTNER: part(robot, "right_"), BOX: box},
            frames=dict.fromkeys((ROBOT, PARTNER), (PALM,)),
            contacts={name: {BOX: Contact((HAND,), BOX)} for name in (ROBOT, PARTNER)},
            floor=True,
        )

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, 4): scale x action, from those that press on the box [rad]."""
        return ctx.robot.per_actuator(PRESS) + self.action_scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """Both arms near home, and the box near the middle of the bench."""
        r, joints = self.start_noise, len(ctx.robot.home)
        drawn = [random.uniform(-r, r, num_envs, joints) + ctx.robot.home for _ in range(2)]
        still = torch.zeros(num_envs, 3, device=random.device)
        box = still.clone()
        box[:, :2] = random.uniform(-self.place_noise, self.place_noise, num_envs, 2)
        box[:, 2] = SURFACE + EDGE / 2 + 0.001
        return {
            ROBOT: InitialState.at_rest(still, joint_pos=drawn[0]),
            PARTNER: InitialState.at_rest(still, joint_pos=drawn[1]),
            BOX: InitialState.at_rest(box),
        }

    def goal(self, state: State, ctx: Context) -> Tensor:
        """The commanded height above the middle of the bench, of the box's middle (N, 3) [m]."""
        place = torch.zeros_like(state.entities[BOX].base_pos)
        place[:, 2] = SURFACE + EDGE / 2 + ctx.command[:, 0]
        return place

    def success(self, state: State, ctx: Context) -> Tensor:
        """Closeness of the box to the commanded height (N,), 1 there and 0 from 0.3 m on."""
        return (1 - (height(state) - ctx.command[:, 0]).abs() / 0.3).clamp(min=0.0)

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor | Ratio]:
        """The share of boxes that are at their height and level in the last second, their distance from the height [m],
        and how many are pressed by both hands."""
        counted = (ctx.episode_time > self.episode_length_s - LAST).float()
        away = (height(state) - ctx.command[:, 0]).abs()
        held = (away < 0.03) & (tilt(state, ctx) < 0.1)
        # A box that is lost counts as much as one that has not been held up all that second.
        lost = self.terminated(state, ctx) * (LAST / ctx.dt)
        return {
            "held_up": Ratio(held * counted, counted + lost),
            "distance": Ratio(away * counted, counted),
            "pressing": pressing(state, ctx),
        }
