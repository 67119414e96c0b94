"""Scene: the robots and objects that are simulated together, and what the State publishes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, did_you_mean, listing

GROUND = "ground"
"""What a contact with the floor is called; no entity may have this name."""
ROBOT = "robot"
"""Name of the entity that `State.robot` is."""
SIZES = {"box": 3, "sphere": 1, "cylinder": 2, "capsule": 2}
"""How many lengths describe each shape."""


@dataclass(frozen=True)
class Object:
    """A rigid body of one shape: free, or fixed to the world."""

    shape: Literal["box", "sphere", "cylinder", "capsule"] = "box"
    size: tuple[float, ...] = (0.04, 0.04, 0.04)
    """Lengths [m]: three edges of a box; diameter of a sphere; diameter, and length along z, of a cylinder or capsule
    (whose length leaves out the round ends)."""
    mass: float = 0.1
    """[kg]; its inertia is that of a solid body of this shape."""
    fixed: bool = False
    """Whether it cannot move."""
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of its centre: where it is fixed, or where it is before the first reset [m]."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """Its orientation there, wxyz."""
    friction: float = 1.0
    """Sliding friction; of two surfaces in contact the larger one counts."""
    torsion: float = 0.005
    """Torsional friction [m]: what keeps an object from turning about the normal of a contact."""
    color: tuple[float, float, float] = (0.98, 0.40, 0.06)
    """Red, green and blue in pictures, 0 to 1."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a shape that does not exist, or a number that no body can have."""
        if self.shape not in SIZES:
            raise ConfigError(
                f"object: there is no shape {self.shape!r}{did_you_mean(self.shape, SIZES)} (valid: {listing(SIZES)})"
            )
        if len(self.size) != SIZES[self.shape] or not all(0 < length < 1e3 for length in self.size):
            raise ConfigError(
                f"object: size={self.size} of a {self.shape}; it takes {SIZES[self.shape]} lengths above 0 m"
            )
        if not 0 < self.mass < 1e6:
            raise ConfigError(f"object: mass={self.mass:g} kg; it must be above 0")
        if not all(map(math.isfinite, (*self.position, *self.quat, self.friction, self.torsion))):
            raise ConfigError("object: position, quat, friction or torsion is not finite")


@dataclass(frozen=True)
class Contact:
    """The contact forces on some bodies of an entity, from everything or from one other part of the scene."""

    bodies: tuple[str, ...] = ()
    """Bodies of the entity, by their names in its file. Of an object, leave it empty."""
    other: str = ""
    """What touches them: empty for anything; `ground`; the name of an entity (its own for self-contact); or one body of
    an entity, `entity/body`."""


@dataclass(frozen=True)
class Place:
    """Where a robot without a free base stands."""

    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """[m]."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """wxyz."""


@dataclass(frozen=True)
class Scene:
    """Robots and objects on flat ground at z = 0, by name, and what is published of them besides poses and joints.

    A frame or contact that is not asked for is not computed. The first robot decides the solver's options.
    """

    entities: Mapping[str, Robot | Object]
    """At least one robot; `State.robot` is the one named `robot`."""
    frames: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By entity: sites or bodies of its file whose pose and velocity the State has."""
    contacts: Mapping[str, Mapping[str, Contact]] = field(default_factory=dict)
    """By entity, then by name: the contact forces that the State has."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where robots without a free base stand; the origin without an entry. The first robot stays at the origin."""
    floor: bool | None = None
    """Whether there is a floor; None: under everything but a lone robot that is fixed and has no feet."""
    params: tuple[str, ...] = ()
    """Physical parameters, besides the three of every scene, that differ by environment:
    `entity/field` or `entity/field/selector`, see `robolearn.envs.randomize`."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that cannot be one, or that the scene does not have."""
        for name in self.entities:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name == GROUND:
                raise ConfigError(
                    f"scene: an entity is called {name!r}; a name has letters, digits and _, and is not {GROUND!r}"
                )
        if not self.robots:
            raise ConfigError("scene: it has no robot; add one to its entities")
        for what, names in (("frames", self.frames), ("contacts", self.contacts), ("places", self.places)):
            for name in names:
                self.known(what, name)
        for name in self.places:
            robot = self.entities[name]
            if isinstance(robot, Object) or robot.base is not None:
                raise ConfigError(
                    f"scene: places has {name}, which is no fixed robot; it says itself where it is"
                )
            if name == self.first:
                raise ConfigError(
                    f"scene: places has {name}, the first robot; it stays at the origin, move the others"
                )
        for name, asked in self.contacts.items():
            for label, contact in asked.items():
                where = f"contacts.{name}.{label}"
                if isinstance(self.entities[name], Object) == bool(contact.bodies):
                    raise ConfigError(
                        f"scene: {where}.bodies={contact.bodies}: name one body of a robot at least, none of an object"
                    )
                entity = contact.other.partition("/")[0]
                if entity not in ("", GROUND):
                    self.known(f"{where}.other", entity, (GROUND,))

    def known(self, where: str, name: str, others: tuple[str, ...] = ()) -> Robot | Object:
        """The entity of that name.

        Raises:
            ConfigError: there is none; names `where` it was asked for.
        """
        if name not in self.entities:
            valid = (*self.entities, *others)
            raise ConfigError(
                f"scene: {where} names {name!r}, which is not in the scene{did_you_mean(name, valid)} "
                f"(valid: {listing(valid)})"
            )
        return self.entities[name]

    @classmethod
    def of(cls, what: Robot | Scene) -> Scene:
        """The scene of one robot alone; a Scene is returned as it is."""
        return what if isinstance(what, Scene) else cls({ROBOT: what})

    @cached_property
    def robots(self) -> dict[str, Robot]:
        """The robots by name, in order."""
        return {name: entity for name, entity in self.entities.items() if isinstance(entity, Robot)}

    @cached_property
    def objects(self) -> dict[str, Object]:
        """The objects by name, in order."""
        return {name: entity for name, entity in self.entities.items() if isinstance(entity, Object)}

    @cached_property
    def first(self) -> str:
        """Name of the first robot, whose names have no prefix in the simulator's model."""
        return next(iter(self.robots))

    @property
    def robot(self) -> Robot:
        """The first robot."""
        return self.robots[self.first]

    def prefix(self, name: str) -> str:
        """What the names of an entity's bodies, joints and sites begin with in the simulator's model."""
        return "" if name == self.first else f"{name}/"

    def place(self, name: str) -> Place:
        """Where an entity is that cannot move, or where it is before the first reset."""
        entity = self.entities[name]
        if isinstance(entity, Object):
            return Place(entity.position, entity.quat)
        if entity.base is not None:
            return Place((0.0, 0.0, entity.home_height))
        return self.places.get(name, Place())

    def moves(self, name: str) -> bool:
        """Whether an entity's root moves freely."""
        entity = self.entities[name]
        return not entity.fixed if isinstance(entity, Object) else entity.base is not None

    @property
    def grounded(self) -> bool:
        """Whether it has a floor."""
        if self.floor is not None:
            return self.floor
        robots = any(robot.base is not None or robot.feet for robot in self.robots.values())
        return robots or len(self.entities) > 1

    @property
    def alone(self) -> bool:
        """Whether it is one robot and nothing else."""
        return len(self.entities) == 1
