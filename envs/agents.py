"""Several agents in one simulated world: a Backend of W worlds as one of W x K environments, each of which is a world
as one of its K agents sees it.

Terms, observations and actions of a task are then written for one robot, `state.robot`, and everything that stands on
environments (learners, evaluation, export) works agent by agent. `Env` lets the agents of a world begin and end their
episodes together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from robolearn.envs.backend import FEATURES, Backend, Snapshot
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import (
    Entity,
    Initial,
    InitialState,
    State,
    Targets,
    Tensor,
    by_entity,
    scene_state,
)
from robolearn.errors import ConfigError, did_you_mean, listing


def check_agents(scene: Scene, agents: tuple[str, ...]) -> None:
    """Check that these entities of a scene can be the agents of a task.

    Raises:
        ConfigError: the first is not `robot`, a name is not of a robot, or the robots or what the scene publishes of
            them are not alike.
    """
    if agents[0] != ROBOT:
        raise ConfigError(f"agents: the first is {agents[0]!r}; it must be {ROBOT!r}")
    first = scene.robot
    for name in agents:
        if name not in scene.robots:
            raise ConfigError(
                f"agents: the scene has no robot {name!r}{did_you_mean(name, scene.robots)} "
                f"(valid: {listing(scene.robots)})"
            )
        mine, its = (_seen_of(robot) for robot in (first, scene.robots[name]))
        if different := [what for what, value in mine.items() if its[what] != value]:
            raise ConfigError(
                f"agents: {name} is another robot than {ROBOT}, with other {listing(different)}; agents are robots of "
                "one kind"
            )
        frames = scene.frames.get(name, ()), scene.frames.get(ROBOT, ())
        if frames[0] != frames[1]:
            raise ConfigError(
                f"agents: the scene publishes the frames {listing(frames[0]) or 'none'} of {name} and "
                f"{listing(frames[1]) or 'none'} of {ROBOT}; ask for the same of each agent"
            )
        contacts = [_contacts_of(scene, agents, each) for each in (name, ROBOT)]
        if contacts[0] != contacts[1]:
            raise ConfigError(
                f"agents: the scene publishes the contacts {listing(contacts[0]) or 'none'} of {name} and "
                f"{listing(contacts[1]) or 'none'} of {ROBOT}, or of other bodies or with others; ask for the same of "
                "each agent, seen from it"
            )
    for name in scene.robots:
        if name not in agents:
            raise ConfigError(f"agents: nothing moves the robot {name}; make it an agent, or an object")


def _contacts_of(scene: Scene, agents: tuple[str, ...], name: str) -> dict[str, tuple[object, ...]]:
    """The contacts of an agent by name: bodies, and what touches them, of an agent how many places after this one."""
    out: dict[str, tuple[object, ...]] = {}
    for label, contact in scene.contacts.get(name, {}).items():
        entity, _, body = contact.other.partition("/")
        after = (agents.index(entity) - agents.index(name)) % len(agents) if entity in agents else entity
        out[label] = contact.bodies, after, body
    return out


def _seen_of(robot: Robot) -> dict[str, object]:
    """What must be equal in two agents."""
    names = ("joints", "actuators", "bodies", "feet", "home")
    limits = None if robot.part is None else robot.part.limits
    return {name: getattr(robot, name) for name in names} | {
        "base": robot.base is None,
        "joint limits": limits,
    }


class AgentBackend:
    """K = `len(agents)` environments for each of the W worlds of a Backend, neighbours in the order of `agents`: row
    w K + k is world w as agent k sees it.

    In its State the entity `robot` is the agent itself, the entity with the name of the second agent is the next one
    after it, and so on; after the last comes the first. Objects are the same for all agents of a world. Positions and
    velocities are in the world's axes. The sensor `agent` has a 1 in the column of this agent.

    Initial states and physical parameters are of a world: those of its first agent's row count.
    """

    features: ClassVar[frozenset[str]] = frozenset(FEATURES)

    def __init__(self, worlds: Backend, scene: Scene, agents: tuple[str, ...]) -> None:
        """
        Raises:
            ConfigError: see `check_agents`, or the simulator computes gradients, or the scene has a terrain.
        """
        check_agents(scene, agents)
        if scene.terrain is not None:
            raise ConfigError("agents: several agents have flat ground; leave out the scene's terrain")
        self.worlds, self.agents = worlds, agents
        self.capabilities, self.device = worlds.capabilities, worlds.device
        if self.capabilities.gradients:
            raise ConfigError(
                f"backend={self.capabilities.name} has no tasks with several agents; use backend=mujoco"
            )
        self.num_envs = worlds.num_envs * len(agents)
        inner = worlds.state
        self._state = State(
            scene_state(scene, self.num_envs, self.device),
            {name: self._repeated(value) for name, value in inner.params.items()},
            self._repeated(inner.diverged),
            {"agent": torch.eye(len(agents), device=self.device).repeat(worlds.num_envs, 1)},
            agents,
        )
        # Each pair of a tensor of the worlds and where an agent sees it, which never change.
        shape = worlds.num_envs, len(agents)
        self._seen = [(mine.view(*shape, *mine.shape[1:]), k) for mine, k, _ in self._places()]
        self._refresh()

    def _repeated(self, value: Tensor) -> Tensor:
        return value.repeat_interleave(len(self.agents), dim=0)

    def _first(self, value: Tensor) -> Tensor:
        """(W, ...) rows of the first agents among (W K, ...)."""
        return value[:: len(self.agents)]

    def _places(self) -> Iterator[tuple[Tensor, int, Tensor]]:
        """(my tensor, agent, the tensor of the worlds that this agent sees there) for every tensor of an entity."""
        inner, count = self.worlds.state.entities, len(self.agents)
        for name, entity in self._state.entities.items():
            for k in range(count):
                shown = name
                if name in self.agents:
                    shown = self.agents[(self.agents.index(name) + k) % count]
                theirs: Entity = inner[shown]
                tensors = theirs.tensors()
                for field, mine in entity.tensors().items():
                    if mine.numel():
                        yield mine, k, tensors[field]

    def _refresh(self) -> None:
        """Copy the State of the worlds to where their agents see it."""
        for (mine, k), (_, _, theirs) in zip(self._seen, self._places(), strict=True):
            mine[:, k].copy_(theirs)
        inner = self.worlds.state
        self._state.diverged.copy_(self._repeated(inner.diverged))
        for name, value in inner.params.items():
            self._state.params[name].copy_(self._repeated(value))

    @property
    def state(self) -> State:
        """The current State, a row an agent."""
        return self._state

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """Reset worlds; see `Backend.reset`. All agents of a world must be in `mask` or none."""
        starts = {
            name: InitialState(**{k: self._first(v) for k, v in vars(value).items()})
            for name, value in by_entity(initial, self._state.entities).items()
        }
        self.worlds.reset(self._first(mask), starts)
        self._refresh()

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`; joint targets (W K, A), each agent's of its own robot."""
        assert isinstance(joint_targets, Tensor)
        each = joint_targets.view(self.worlds.num_envs, len(self.agents), -1).unbind(dim=1)
        self.worlds.step(
            {name: target.contiguous() for name, target in zip(self.agents, each, strict=True)}, substeps
        )
        self._refresh()

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """Refused: a Backend pushes the first robot only."""
        raise ConfigError("a task with several agents cannot push them")

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`; `force` (M W, 3) is that of the first agent of each world."""
        self.worlds.apply_force(self._first(force))

    def snapshot(self) -> Snapshot:
        """Copy the worlds."""
        return self.worlds.snapshot()

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`; rows of the agents of one world come from one world, in the same order."""
        rows = None if source_rows is None else self._first(source_rows) // len(self.agents)
        self.worlds.restore(snapshot, rows)
        self._refresh()

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """Set physical parameters of worlds; see `Backend.set_params`."""
        self.worlds.set_params(self._first(mask), {k: self._first(v) for k, v in params.items()})
        self._refresh()

    def check(self) -> None:
        """See `Backend.check`."""
        self.worlds.check()

    def close(self) -> None:
        """Free the simulator."""
        self.worlds.close()
