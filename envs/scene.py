"""Scene: the robots and objects that are simulated together, and what the State publishes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from robolearn.envs.robot import Robot
from robolearn.envs.terrain import Terrain
from robolearn.errors import ConfigError, did_you_mean, listing

GROUND = "ground"
"""What a contact with the floor is called; no entity may have this name."""
ROBOT = "robot"
"""Name of the entity that `State.robot` is."""
COLLISIONS = ("all", "light")
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
    """Its orientation there, wxyz; brought to length 1."""
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
        sized = isinstance(self.size, tuple | list) and len(self.size) == SIZES[self.shape]
        if not sized or not all(isinstance(x, int | float) and 0 < x < 1e3 for x in self.size):
            raise ConfigError(
                f"object: size={self.size} of a {self.shape}; it takes {SIZES[self.shape]} lengths above 0 m"
            )
        if not 0 < self.mass < 1e6:
            raise ConfigError(f"object: mass={self.mass:g} kg; it must be above 0")
        for name in ("friction", "torsion"):
            if not 0 <= getattr(self, name) < 1e3:
                raise ConfigError(f"object: {name}={getattr(self, name):g}; it must be 0 or more")
        _set_pose(self, "object")


@dataclass(frozen=True)
class Contact:
    """The contact forces on some bodies of an entity, from everything or from one other part of the scene."""

    bodies: tuple[str, ...] = ()
    """Bodies of the entity, by their names in its file. Of an object, leave it empty."""
    other: str = ""
    """What touches them: empty for anything; `ground`; the name of an entity (its own for self-contact); or one body of
    an entity, `entity/body`."""

    def __post_init__(self) -> None:
        """Raise ConfigError for bodies that are no tuple of different names, or a malformed `other`."""
        _require_names("contact: bodies", self.bodies)
        entity, slash, body = self.other.partition("/")
        if slash and (not entity or not body or entity == GROUND):
            raise ConfigError(f"contact: other={self.other!r}; write {GROUND}, ENTITY or ENTITY/BODY")


@dataclass(frozen=True)
class Place:
    """Where a robot stands, or, of one with a free base, where its base is before the first reset."""

    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """[m]."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """wxyz; brought to length 1."""

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers that are no pose."""
        _set_pose(self, "place")


@dataclass(frozen=True)
class Ring:
    """A circle on the floor around the origin, which is drawn and which nothing touches."""

    radius: float
    """[m]."""
    color: tuple[float, float, float] = (0.98, 0.40, 0.06)
    """Red, green and blue, 0 to 1."""


def _set_pose(of: Object | Place, what: str) -> None:
    """Bring the quaternion of a pose to length 1.

    Raises:
        ConfigError: a number is not finite, there are too few or many, or the quaternion is zero.
    """
    for name, count in (("position", 3), ("quat", 4)):
        value = getattr(of, name)
        if len(value) != count or not all(map(math.isfinite, value)):
            raise ConfigError(f"{what}: {name}={value}; it takes {count} finite numbers")
    norm = math.hypot(*of.quat)
    if not norm:
        raise ConfigError(f"{what}: quat is zero; an orientation is a unit quaternion wxyz")
    object.__setattr__(of, "position", tuple(float(x) for x in of.position))
    object.__setattr__(of, "quat", tuple(x / norm for x in of.quat))


def _require_names(where: str, names: object) -> None:
    """Raise ConfigError for anything but a tuple of different names."""
    if isinstance(names, str) or not isinstance(names, tuple | list):
        raise ConfigError(f"{where}={names!r}; it takes a tuple of names, such as ({names!r},)")
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}={names!r} has a name twice")


@dataclass(frozen=True)
class Scene:
    """Robots and objects on flat ground at z = 0, or on a terrain, by name, and what is published of them besides poses
    and joints.

    A frame or contact that is not asked for is not computed. The first robot decides the solver's options.
    """

    entities: Mapping[str, Robot | Object]
    """At least one robot; `State.robot` is the one named `robot`."""
    frames: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By entity: sites or bodies of its file whose pose and velocity the State has; of one name the site."""
    contacts: Mapping[str, Mapping[str, Contact]] = field(default_factory=dict)
    """By entity, then by name: the contact forces that the State has."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where robots other than the first stand. Without an entry a fixed robot is at the origin, a free base there in
    its home pose."""
    floor: bool | None = None
    """Whether there is a floor; None: under everything but a lone robot that is fixed and has no feet."""
    collisions: Literal["all", "light"] = "all"
    """What of robots on legs must collide: all that does in their files, or only what a walk touches: feet with the
    ground, legs with other legs, hands with legs and each other. A backend that can leave out the rest does so, which
    is faster (`robolearn.envs.collisions`)."""
    terrain: Terrain | None = None
    """Uneven ground; None, and one that is flat alone: the plane z = 0. Positions of a State on it are relative to each
    environment's origin, the middle of a tile."""
    ring: Ring | None = None
    """A circle drawn on the floor. Pictures then show all of it, from a camera that follows no robot."""
    params: tuple[str, ...] = ()
    """Physical parameters, besides the three of every scene, that differ by environment:
    `entity/field` or `entity/field/selector`, see `robolearn.envs.randomize`."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that cannot be one, or that the scene does not have."""
        for what in ("entities", "frames", "contacts", "places"):
            if not isinstance(getattr(self, what), Mapping):
                raise ConfigError(
                    f"scene: {what} is a {type(getattr(self, what)).__name__}; it takes a dictionary by name"
                )
        for name, thing in self.entities.items():
            if not isinstance(thing, Robot | Object):
                raise ConfigError(f"scene: {name} is {thing!r}; an entity is a Robot or an Object")
            if (
                not isinstance(name, str)
                or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
                or name == GROUND
            ):
                raise ConfigError(
                    f"scene: an entity is called {name!r}; a name has letters, digits and _, and is not {GROUND!r}"
                )
        if self.collisions not in COLLISIONS:
            raise ConfigError(f"scene: collisions={self.collisions!r} (valid: {listing(COLLISIONS)})")
        if not self.robots:
            raise ConfigError("scene: it has no robot; add one to its entities")
        for what, names in (("frames", self.frames), ("contacts", self.contacts), ("places", self.places)):
            for name in names:
                self.known(what, name)
        for name, frames in self.frames.items():
            _require_names(f"scene: frames.{name}", frames)
        for name, place in self.places.items():
            if not isinstance(place, Place):
                raise ConfigError(
                    f"scene: places.{name} is {place!r}; it takes a Place((x, y, z), (w, x, y, z))"
                )
            if isinstance(self.entities[name], Object):
                raise ConfigError(f"scene: places has {name}, an object, which has a position of its own")
            if self.robots[name].part is not None:
                raise ConfigError(f"scene: places has {name}, a part, which is where its robot has it")
            if name == self.first:
                raise ConfigError(
                    f"scene: places has {name}, the first robot; it stays at the origin, move the others"
                )
        self._check_parts()
        self._check_terrain()
        spots: dict[tuple[float, float, float], str] = {}
        for name, robot in self.robots.items():
            if robot.part is not None and name != self.first:
                continue  # of a free base, all parts are at the same place
            spot = self.place(name).position
            if spot in spots:
                raise ConfigError(
                    f"scene: {name} and {spots[spot]} stand at the same place; give one of them another in places"
                )
            spots[spot] = name
        for name, asked in self.contacts.items():
            if not isinstance(asked, Mapping) or not all(
                isinstance(each, Contact) for each in asked.values()
            ):
                raise ConfigError(f"scene: contacts.{name} is {asked!r}; it takes Contacts by their names")
            for label, contact in asked.items():
                where = f"contacts.{name}.{label}"
                if isinstance(self.entities[name], Object) == bool(contact.bodies):
                    raise ConfigError(
                        f"scene: {where}.bodies={contact.bodies}: name one body of a robot at least, none of an object"
                    )
                if contact.other == name and name in self.objects:
                    raise ConfigError(f"scene: {where}.other is the object itself, which has one body")
                entity = contact.other.partition("/")[0]
                if entity not in ("", GROUND):
                    self.known(f"{where}.other", entity, (GROUND,))

    def _check_parts(self) -> None:
        """Raise ConfigError for parts of several robots, and for a joint that is in two of them, or in none."""
        parts = {name: robot.part for name, robot in self.robots.items() if robot.part is not None}
        if not parts:
            return
        first = self.robot.part
        for name, part in parts.items():
            if first is None or part.whole != first.whole:
                raise ConfigError(
                    f"scene: {name} is a part of another robot than {self.first}; parts are those of the first robot"
                )
        if len(parts) == 1:
            return
        for joint in first.whole.joints if first is not None else ():
            owners = [name for name, part in parts.items() if joint.startswith(part.prefix)]
            if len(owners) != 1:
                prefixes = listing(f"{part.prefix!r} of {name}" for name, part in parts.items())
                raise ConfigError(
                    f"scene: the joint {joint} is in {' and '.join(owners) or 'no part'}; each joint belongs to one "
                    f"part (prefixes: {prefixes})"
                )

    def _check_terrain(self) -> None:
        """Raise ConfigError for what stays in one place, while environments have the ground of different places."""
        if self.terrain is None:
            return
        if not isinstance(self.terrain, Terrain):
            raise ConfigError(f"scene: terrain is {self.terrain!r}; it takes a Terrain")
        if self.terrain.flat:
            object.__setattr__(self, "terrain", None)
            return
        stays = [name for name in self.entities if not self.moves(name)]
        if stays or self.ring is not None or self.floor is False:
            what = f"{stays[0]!r} is fixed" if stays else "a ring" if self.ring is not None else "floor=False"
            raise ConfigError(
                f"scene: terrain cannot be combined with what does not move ({what}); each environment is at another "
                "place of it"
            )

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

    @cached_property
    def whole(self) -> Robot:
        """The first robot; where several parts of it are entities, the robot that they are parts of."""
        part = self.robot.part
        return part.whole if part is not None and len(self.parts) > 1 else self.robot

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The entities that are parts of the first robot, see `robolearn.envs.parts`; one alone is simulated by
        itself."""
        return tuple(name for name, robot in self.robots.items() if robot.part is not None)

    def prefix(self, name: str) -> str:
        """What the names of an entity's bodies, joints and sites begin with in the simulator's model."""
        part = self.robots[name].part if name in self.robots else None
        if part is not None:
            return part.prefix if len(self.parts) > 1 else ""
        return "" if name == self.first else f"{name}/"

    def place(self, name: str) -> Place:
        """Where an entity is that cannot move, or where it is before the first reset."""
        entity = self.entities[name]
        if isinstance(entity, Object):
            return Place(entity.position, entity.quat)
        if name in self.places:
            return self.places[name]
        if entity.part is not None:
            return Place(entity.part.position, entity.part.quat)
        return Place((0.0, 0.0, entity.home_height if entity.base is not None else 0.0))

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
