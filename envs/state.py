"""State: the simulated world of N environments, in the same convention for every simulator.

SI units, float32 tensors on the backend's device, quaternions wxyz, joints in the robot's order, velocities of the link
frame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Object, Scene
from robolearn.errors import ConfigError, did_you_mean, listing

Tensor = torch.Tensor


@dataclass
class Frame:
    """A body or site in each of N environments, in the world and in its axes."""

    pos: Tensor
    """(N, 3) [m]."""
    quat: Tensor
    """(N, 4) wxyz."""
    lin_vel: Tensor
    """(N, 3) velocity of its origin [m/s]."""
    ang_vel: Tensor
    """(N, 3) [rad/s]."""


@dataclass
class ContactForces:
    """The contact forces that a `robolearn.envs.scene.Contact` asked for."""

    force: Tensor
    """(N, K, 3) net force on each of its K bodies, world axes [N]."""

    def touching(self, threshold: float = 0.01) -> Tensor:
        """(N, K) bool: whether a force of more than `threshold` [N] acts. Forces that cancel, as on a body that is
        squeezed, count as none; ask for each of them."""
        return self.force.norm(dim=-1) > threshold


@dataclass
class Entity:
    """One robot or object in each of N environments; J joints, B selected bodies, F feet, none of them of an object.

    Base and joint positions and velocities are at time t. `Capabilities.derived_lag` says whether torque,
    body, foot and contact fields are at t too or one physics substep behind.
    """

    base_pos: Tensor
    """(N, 3) base link origin in the world [m]."""
    base_quat: Tensor
    """(N, 4) base link orientation in the world, wxyz."""
    base_lin_vel: Tensor
    """(N, 3) velocity of the base link origin, in base link axes [m/s]."""
    base_ang_vel: Tensor
    """(N, 3) angular velocity of the base link, in base link axes [rad/s]."""
    joint_pos: Tensor
    """(N, J) [rad], or [m] for a slide."""
    joint_vel: Tensor
    """(N, J) [rad/s], or [m/s]."""
    joint_torque: Tensor
    """(N, J) torque the actuators apply [Nm], or [N]."""
    body_pos: Tensor
    """(N, B, 3) origins of the robot's selected bodies in the world [m]."""
    foot_pos: Tensor
    """(N, F, 3) centre of each sole in the world [m]."""
    foot_quat: Tensor
    """(N, F, 4) orientation of each sole in the world, wxyz."""
    foot_lin_vel: Tensor
    """(N, F, 3) velocity of each sole centre, world axes [m/s]."""
    foot_force: Tensor
    """(N, F, 3) net contact force on each foot, world axes [N]."""
    frames: dict[str, Frame] = field(default_factory=dict)
    """The frames that the scene asks for, by name."""
    contacts: dict[str, ContactForces] = field(default_factory=dict)
    """The contacts that the scene asks for, by name."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, in declaration order; of frames and contacts `frames.<name>.<field>`, and so on."""
        out: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            if isinstance(value, dict):
                out |= {f"{name}.{k}.{f}": x for k, part in value.items() for f, x in vars(part).items()}
            else:
                out[name] = value
        return out

    def each(self, function: Callable[[Tensor], Tensor]) -> Entity:
        """The same with `function` applied to every tensor."""
        return Entity(
            **{k: function(v) for k, v in vars(self).items() if not isinstance(v, dict)},
            frames={
                name: Frame(**{k: function(v) for k, v in vars(frame).items()})
                for name, frame in self.frames.items()
            },
            contacts={name: ContactForces(function(c.force)) for name, c in self.contacts.items()},
        )


@dataclass
class State:
    """The simulated world of N environments, by entity.

    Valid until the next step, reset or restore; to keep it longer, clone it.
    """

    entities: dict[str, Entity]
    params: dict[str, Tensor] = field(default_factory=dict)
    """Physical parameters of each environment, (N,) each, for the central critic; see `PARAMETERS`."""
    diverged: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """(N,) bool: the simulation of this environment diverged during the last step."""
    sensors: dict[str, Tensor] = field(default_factory=dict)
    """Readings that replace what a `Sensor` computes, by its name: on a robot, where the rest of State is unknown."""
    agents: tuple[str, ...] = ()
    """The agents of a world where each environment is a world as one of them sees it, see `robolearn.envs.agents`."""
    origin: Tensor | None = None
    """(N, 3) the environments' origins in the world [m], which positions are relative to; only on a terrain."""

    @property
    def robot(self) -> Entity:
        """The entity named `robot`."""
        return self.entities["robot"]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of every entity: of `robot` by the names of `Entity.tensors`, of others as `<entity>/<name>`."""
        return {
            tensor_name(entity, name): tensor
            for entity, value in self.entities.items()
            for name, tensor in value.tensors().items()
        }

    def clone(self) -> State:
        """A copy that survives the next step."""
        return self.each(Tensor.clone)

    def rows(self, index: Tensor) -> State:
        """A copy of the environments with these indices (K,)."""
        return self.each(lambda tensor: tensor[index])

    def each(self, function: Callable[[Tensor], Tensor]) -> State:
        """The same with `function` applied to every tensor."""
        entities = {name: entity.each(function) for name, entity in self.entities.items()}
        params, sensors = ({k: function(v) for k, v in part.items()} for part in (self.params, self.sensors))
        origin = None if self.origin is None else function(self.origin)
        return State(entities, params, function(self.diverged), sensors, self.agents, origin)

    def in_world(self, name: str, field: str) -> Tensor:
        """(N, ...) a field of the entity that has this name in the scene, whichever agent sees the environment."""
        if name not in self.agents:
            value: Tensor = getattr(self.entities[name], field)
            return value
        each = torch.stack([getattr(self.entities[agent], field) for agent in self.agents])
        seen_by, count = self.sensors["agent"].argmax(dim=1), len(self.agents)
        return each[
            (self.agents.index(name) - seen_by) % count, torch.arange(len(seen_by), device=each.device)
        ]


def tensor_name(entity: str, name: str) -> str:
    """Name of an entity's tensor in `State.tensors`."""
    return name if entity == ROBOT else f"{entity}/{name}"


@dataclass
class InitialState:
    """The state of one entity that a reset sets: one row per environment, in State's convention; the mask selects the
    rows."""

    base_pos: Tensor
    base_quat: Tensor
    base_lin_vel: Tensor
    base_ang_vel: Tensor
    joint_pos: Tensor
    joint_vel: Tensor

    @classmethod
    def at_rest(
        cls, base_pos: Tensor, base_quat: Tensor | None = None, joint_pos: Tensor | None = None
    ) -> InitialState:
        """Without velocity: base at `base_pos` (N, 3), upright without `base_quat` (N, 4), joints at `joint_pos`
        (N, J), none of an object."""
        still = torch.zeros_like(base_pos)
        if base_quat is None:
            base_quat = base_pos.new_zeros(len(base_pos), 4)
            base_quat[:, 0] = 1.0
        if joint_pos is None:
            joint_pos = base_pos.new_zeros(len(base_pos), 0)
        return cls(base_pos, base_quat, still, still, joint_pos, torch.zeros_like(joint_pos))


Initial = InitialState | Mapping[str, InitialState]
"""The initial states of a scene by the names of its entities; one alone is that of `robot`."""
Targets = Tensor | Mapping[str, Tensor]
"""Joint targets (N, A) by the names of a scene's robots; one alone is that of `robot`."""


def by_entity(value: Any, names: Collection[str]) -> dict[str, Any]:
    """Initial states or joint targets by the names of the entities.

    Raises:
        ConfigError: one is for an entity that is not among `names`.
    """
    given = dict(value) if isinstance(value, Mapping) else {ROBOT: value}
    for name in given:
        if name not in names:
            raise ConfigError(
                f"the scene has no {name!r}{did_you_mean(name, names)} (valid: {listing(names)})"
            )
    return given


def quat_rotate_inverse(quat: Tensor, vec: Tensor) -> Tensor:
    """Express world vectors (..., 3) in the frame of unit quaternions (..., 4), wxyz.

    v' = v - 2 w (q x v) + 2 (q x (q x v)): the rotation by the conjugate quaternion.
    """
    w, xyz = quat[..., :1], quat[..., 1:]
    cross = torch.linalg.cross(xyz, vec)
    return vec - 2.0 * w * cross + 2.0 * torch.linalg.cross(xyz, cross)


def quat_rotate(quat: Tensor, vec: Tensor) -> Tensor:
    """Express vectors (..., 3) of the frame of unit quaternions (..., 4), wxyz, in the world."""
    w, xyz = quat[..., :1], quat[..., 1:]
    cross = torch.linalg.cross(xyz, vec)
    return vec + 2.0 * w * cross + 2.0 * torch.linalg.cross(xyz, cross)


def quat_multiply(a: Tensor, b: Tensor) -> Tensor:
    """Product of quaternions (..., 4), wxyz: the rotation by b, then by a."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    vector = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat([aw * bw - (av * bv).sum(-1, keepdim=True), vector], dim=-1)


def robot_entity(robot: Robot, num_envs: int, device: torch.device) -> Entity:
    """An Entity of zeros (unit quaternions) with this robot's shapes."""
    return scene_state(Scene.of(robot), num_envs, device)[ROBOT]


def scene_state(scene: Scene, num_envs: int, device: torch.device) -> dict[str, Entity]:
    """An Entity of zeros (unit quaternions) for each of a scene's, for a backend to write into. Roots that cannot move
    are at their places already."""
    out = {}
    for name, entity in scene.entities.items():
        out[name] = _entity(entity, scene, name, num_envs, device)
        if not scene.moves(name):
            place = scene.place(name)
            out[name].base_pos[:] = torch.tensor(place.position, device=device)
            out[name].base_quat[:] = torch.tensor(place.quat, device=device)
    return out


def _entity(entity: Robot | Object, scene: Scene, name: str, num_envs: int, device: torch.device) -> Entity:
    j, b, f = (
        (0, 0, 0) if isinstance(entity, Object) else map(len, (entity.joints, entity.bodies, entity.feet))
    )

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(num_envs, *shape, device=device)

    def unit_quat(*shape: int) -> Tensor:
        quat = zeros(*shape, 4)
        quat[..., 0] = 1.0
        return quat

    def contact_width(contact: Contact) -> int:
        return max(1, len(contact.bodies))

    return Entity(
        base_pos=zeros(3),
        base_quat=unit_quat(),
        base_lin_vel=zeros(3),
        base_ang_vel=zeros(3),
        joint_pos=zeros(j),
        joint_vel=zeros(j),
        joint_torque=zeros(j),
        body_pos=zeros(b, 3),
        foot_pos=zeros(f, 3),
        foot_quat=unit_quat(f),
        foot_lin_vel=zeros(f, 3),
        foot_force=zeros(f, 3),
        frames={k: Frame(zeros(3), unit_quat(), zeros(3), zeros(3)) for k in scene.frames.get(name, ())},
        contacts={
            k: ContactForces(zeros(contact_width(c), 3)) for k, c in scene.contacts.get(name, {}).items()
        },
    )


def packed_state(
    scene: Scene, num_envs: int, device: torch.device
) -> tuple[dict[str, Entity], Tensor, dict[str, int]]:
    """The entities of `scene_state`, whose tensors are parts of one tensor, for a kernel that writes all of them.

    Returns:
        The entities; that tensor, with the tensors (N, ...) one after the other; and by the name of each tensor, see
        `State.tensors`, where it begins there, counted in numbers of one environment.
    """
    entities = scene_state(scene, num_envs, device)
    tensors = State(entities).tensors()
    starts, total = {}, 0
    for name, tensor in tensors.items():
        starts[name] = total
        total += tensor[0].numel()
    packed = torch.empty(num_envs * total, device=device)
    views = {}
    for name, tensor in tensors.items():
        begin = num_envs * starts[name]
        views[name] = packed[begin : begin + tensor.numel()].view(tensor.shape).copy_(tensor)
    by_address = {id(tensor): views[name] for name, tensor in tensors.items()}
    return {n: e.each(lambda tensor: by_address[id(tensor)]) for n, e in entities.items()}, packed, starts


def home(scene: Scene, name: str, num_envs: int, device: torch.device) -> InitialState:
    """One entity where its scene has it, at rest: a robot in its home pose, a free one with its soles on the ground."""
    entity, place = scene.entities[name], scene.place(name)
    joints = () if isinstance(entity, Object) else entity.home

    def row(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device).repeat(num_envs, 1)

    return InitialState.at_rest(row(place.position), row(place.quat), row(joints).view(num_envs, len(joints)))
