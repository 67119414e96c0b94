"""The smallest differentiable backend, whose gradients can be computed by hand, and a task for it.

Each environment is a point on a line, the slider of the cartpole robot. Its joint target is its velocity, held for the
whole step: x' = x + dt a. The hinge keeps its initial position.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from robolearn.core.env import Env
from robolearn.envs.backend import Capabilities
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import InitialState, State, Tensor, robot_entity
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.task import Task, Term
from tests.factories import load_robot

DT = 0.1
"""Length of a step [s]."""


class Token:
    """Exists as long as the autograd graph of its step."""


class Move(torch.autograd.Function):
    """x + dt a."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, seconds: float, token: Token) -> Tensor:
        ctx.seconds, ctx.token = seconds, token
        return x + seconds * a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], ctx.seconds * grads[0], None, None


class Toy:
    """N points. `gradients=False` is the same simulator without gradients."""

    def __init__(
        self,
        scene: Scene | Robot,
        num_envs: int,
        device: str = "cpu",
        config: Any = None,
        gradients: bool = True,
    ) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.capabilities = Capabilities("toy", DT, 0, "explicit", exact_restore=True, gradients=gradients)
        self.robot = Scene.of(scene).robot
        self.x, self.hinge = (torch.zeros(num_envs, 1, device=device) for _ in range(2))
        self.v = torch.zeros(num_envs, 1, device=device)
        self.tokens: list[weakref.ref[Token]] = []
        self.on_gradient: Callable[[Tensor], Tensor] | None = None
        """Replaces the gradient (N, 1) with respect to the position after the next step, once; to inject faults."""
        self._publish()

    @property
    def living_steps(self) -> int:
        """Number of steps whose autograd graph is still referenced."""
        return sum(token() is not None for token in self.tokens)

    def _publish(self, diverged: Tensor | None = None) -> None:
        entity = robot_entity(self.robot, self.num_envs, self.device)
        joint_pos = torch.cat((self.x, self.hinge), dim=1)
        joint_vel = torch.cat((self.v, torch.zeros_like(self.v)), dim=1)
        entity = replace(entity, joint_pos=joint_pos, joint_vel=joint_vel)
        never = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.state = State({"robot": entity}, {}, never if diverged is None else diverged)

    def step(self, joint_targets: Tensor, substeps: int) -> None:
        token = Token()
        if self.capabilities.gradients:
            self.tokens.append(weakref.ref(token))
            self.x = Move.apply(self.x, joint_targets, DT * substeps, token)
            self.v = joint_targets
            if self.on_gradient is not None:
                self.x.register_hook(self.on_gradient)
                self.on_gradient = None
        else:
            self.x, self.v = (self.x + DT * substeps * joint_targets).detach(), joint_targets.detach()
        self._publish(~torch.isfinite(self.x.detach()).squeeze(1))

    def reset(self, mask: Tensor, initial: InitialState) -> None:
        where = mask[:, None]
        self.x = torch.where(where, initial.joint_pos[:, :1], self.x)
        self.hinge = torch.where(where, initial.joint_pos[:, 1:], self.hinge)
        self.v = torch.where(where, initial.joint_vel[:, :1], self.v)
        self._publish()

    def detach(self) -> None:
        self.x, self.v = self.x.detach(), self.v.detach()
        self._publish()

    def snapshot(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("x", "hinge", "v")}

    def restore(self, snapshot: dict[str, Tensor], source_rows: Tensor | None = None) -> None:
        rows = torch.arange(self.num_envs) if source_rows is None else source_rows
        for name, value in snapshot.items():
            setattr(self, name, value[rows])
        self._publish()

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None: ...
    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


def far(state: State, ctx: Context) -> Tensor:
    """Squared distance from the origin (N,)."""
    return state.robot.joint_pos[:, 0].square()


def rate(state: State, ctx: Context) -> Tensor:
    """Squared change of the action (N,)."""
    return (ctx.action - ctx.previous_action).square().sum(dim=1)


def lost(state: State, ctx: Context) -> Tensor:
    """Whether the point is beyond 3 (N,) bool."""
    return state.robot.joint_pos[:, 0].abs() > 3.0


@dataclass
class Home(Task):
    """Points move to the origin; they start at 1, or at most `spread` away from 1."""

    robot: str = "cartpole"
    control_dt: float = DT
    episode_length_s: float = 2.0
    spread: float = 0.0
    rewards: dict[str, float] = field(default_factory=lambda: {"far": -1.0, "rate": 0.0})
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("joint_pos_rel",),
        "critic": ("joint_pos_rel", "last_action"),
    }

    def reward_terms(self) -> dict[str, Term]:
        return {"far": far, "rate": rate}

    def terminations(self) -> dict[str, Term]:
        return {"lost": lost}

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        return action

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        return {"travelled": torch.zeros(num_envs, device=random.device)}

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        return {"travelled": ctx.task_state["travelled"] + state.robot.joint_pos[:, 0]}

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor]:
        return {"distance": state.robot.joint_pos[:, 0].abs()}

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        zeros = torch.zeros(num_envs, 3, device=random.device)
        quat = torch.zeros(num_envs, 4, device=random.device)
        quat[:, 0] = 1.0
        start = random.uniform((1.0 - self.spread, 0.0), (1.0 + self.spread, 0.0), num_envs)
        return InitialState(zeros, quat, zeros, zeros, start, torch.zeros(num_envs, 2, device=random.device))


def toy_env(
    task: Task | None = None, num_envs: int = 2, seed: int = 1, gradients: bool = True, device: str = "cpu"
) -> tuple[Env, Toy]:
    """An Env of points and its backend."""
    robot = load_robot("cartpole")
    toy = Toy(robot, num_envs, device, gradients=gradients)
    return Env(task or Home(), robot, toy, seed=seed), toy
