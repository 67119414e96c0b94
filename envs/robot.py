"""Robot: names, joint order, home pose and actuators, read from robot.yaml. Imports no simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from robolearn.config.yaml_file import PlainLoader, parse
from robolearn.errors import ConfigError, did_you_mean, listing, quote

SCHEMA = 1
KINDS = ("position", "force")
LARGEST = 1e12
"""The largest number accepted in a robot.yaml; infinity is refused."""


@dataclass(frozen=True)
class Actuator:
    """The motor of one joint.

    `position` is a PD law inside the solver, torque = kp (joint target - position) - kd velocity, clipped to
    +-effort. `force` applies the joint target as a torque or force, clipped to +-effort.
    """

    joint: str
    """Name of the joint it drives."""
    kind: str
    """"position" or "force"."""
    kp: float
    """Stiffness [Nm/rad or N/m]; 0 for a force actuator."""
    kd: float
    """Damping [Nm s/rad or N s/m]; 0 for a force actuator."""
    effort: float
    """Largest torque or force in either direction [Nm or N]."""


@dataclass(frozen=True)
class Mirror:
    """The robot's reflection across its sagittal (x-z) plane, given by names."""

    left: str
    """Prefix of names on the left side, such as "l_"."""
    right: str
    """Prefix of names on the right side."""
    flip: tuple[str, ...]
    """Joints, without prefix, whose sign changes: those that turn about x or z, or slide along y."""

    def base(self, name: str) -> str:
        """The name without its side's prefix."""
        for prefix in (self.left, self.right):
            if name.startswith(prefix):
                return name[len(prefix) :]
        return name

    def twin(self, name: str) -> str:
        """The name on the other side; a name without a side is its own twin."""
        if name.startswith(self.left):
            return self.right + name[len(self.left) :]
        if name.startswith(self.right):
            return self.left + name[len(self.right) :]
        return name


@dataclass(frozen=True)
class Robot:
    """A robot, as backends, tasks and exported policies use it.

    Joint vectors have one entry for each name in `joints`, in that order. Vectors of actions and joint targets have
    one for each of `actuators`: the same order without the passive joints.
    """

    name: str
    """Name of the robot's folder."""
    description: str
    """One line of text."""
    path: Path
    """The robot's folder."""
    mjcf: Path
    """Its MJCF file: bodies, joints, geoms and sites. `build_spec` adds floor, actuators, sensors and options."""
    base: str | None
    """The free-floating body; None for a robot fixed to the world."""
    home_height: float
    """z of the base [m] at which the soles just touch the ground in the home pose; 0 without a free base."""
    feet: tuple[str, ...]
    """Bodies that stand on the ground; each holds a site of the same name at the centre of its sole."""
    bodies: tuple[str, ...]
    """Bodies whose positions are in State."""
    joints: tuple[str, ...]
    """Every hinge and slide joint, in the robot's order."""
    home: tuple[float, ...]
    """Home position of each joint [rad or m]."""
    actuators: tuple[Actuator, ...]
    """One for each actuated joint, in the order of `joints`."""
    solver: dict[str, dict[str, Any]] = field(hash=False)
    """Simulator options by backend name; each has `timestep` [s]."""
    mirror: Mirror | None = None
    """Left-right symmetry; None for a robot without it."""

    @property
    def actuated(self) -> tuple[int, ...]:
        """For each actuator, the index of its joint in `joints`."""
        return tuple(self.joints.index(actuator.joint) for actuator in self.actuators)

    def mirror_joints(self) -> tuple[list[int], list[float]] | None:
        """(permutation, sign) with mirrored[i] = sign[i] * vector[permutation[i]]; None without a mirror."""
        return self._mirrored(self.joints)

    def mirror_actuators(self) -> tuple[list[int], list[float]] | None:
        """The same for vectors with one entry per actuator."""
        return self._mirrored(tuple(actuator.joint for actuator in self.actuators))

    def mirror_feet(self) -> list[int] | None:
        """Permutation that swaps left and right feet; None without a mirror."""
        if self.mirror is None:
            return None
        return [self.feet.index(self.mirror.twin(foot)) for foot in self.feet]

    def _mirrored(self, names: tuple[str, ...]) -> tuple[list[int], list[float]] | None:
        if self.mirror is None:
            return None
        permutation = [names.index(self.mirror.twin(name)) for name in names]
        return permutation, [-1.0 if self.mirror.base(name) in self.mirror.flip else 1.0 for name in names]

    @classmethod
    def load(cls, folder: str | Path) -> Robot:
        """Read and check `folder`/robot.yaml.

        Names are checked against the MJCF when the scene is built (`robolearn.envs.mjcf`).

        Raises:
            ConfigError: the file is invalid; one line with the file, the offender, the valid choices and the fix.
        """
        folder = Path(folder).resolve()
        return _Reader(folder / "robot.yaml").robot()


class _UniqueKeys(PlainLoader):
    """Refuses duplicate keys, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise yaml.MarkedYAMLError(problem=f"{name} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


class _Reader:
    """Parses one robot.yaml into a Robot; every error is one line that begins with the file."""

    def __init__(self, file: Path):
        self.file = file

    def fail(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.file}: {message}")

    def fail_name(self, problem: str, name: object, valid: Iterable[str]) -> NoReturn:
        """Fail with `problem`, the wrong `name` and the valid names."""
        valid = tuple(valid)
        near = did_you_mean(name, valid) if isinstance(name, str) else ""
        self.fail(f"{problem} {quote(name)}{near} (valid: {listing(valid, 24)})")

    def robot(self) -> Robot:
        raw = self.document()
        if raw.get("schema") != SCHEMA:
            self.fail(
                f"schema is {quote(raw.get('schema'))}, this version of RoboLearn reads schema {SCHEMA}; "
                "convert the file, or use the version of RoboLearn it was written for"
            )
        self.keys(
            "the file",
            raw,
            required=("schema", "description", "mjcf", "joints", "solver"),
            optional=("base", "home_height", "feet", "bodies", "actuators", "mirror"),
        )
        base = self.text("base", raw["base"]) if raw.get("base") is not None else None
        if base is not None and "home_height" not in raw:
            self.fail(f"home_height is missing; give the z of {base} [m] at which the soles touch the ground")
        if base is None and "home_height" in raw:
            self.fail("home_height is only for a robot with a free base; remove it, or name the body in base")
        mjcf = self.file.parent / self.text("mjcf", raw["mjcf"])
        if not mjcf.is_file():
            self.fail(
                f"mjcf names {quote(raw['mjcf'])}, which is not a file in {self.file.parent}; correct the name"
            )
        joints, home, actuators = self.joints(raw["joints"], raw.get("actuators", {}))
        feet = self.names("feet", raw.get("feet", []))
        return Robot(
            name=self.file.parent.name,
            description=self.text("description", raw["description"]),
            path=self.file.parent,
            mjcf=mjcf,
            base=base,
            home_height=self.number("home_height", raw.get("home_height", 0.0)),
            feet=feet,
            bodies=self.names("bodies", raw.get("bodies", [])),
            joints=joints,
            home=home,
            actuators=actuators,
            solver=self.solver(raw["solver"]),
            mirror=self.mirror(raw.get("mirror"), joints, [a.joint for a in actuators], feet),
        )

    def document(self) -> Mapping[str, Any]:
        """The parsed file, which must be a mapping."""
        if not self.file.is_file():
            self.fail("no such file; a robot is a folder with a robot.yaml and an MJCF file")
        try:
            raw = parse(self.file.read_text(encoding="utf-8"), _UniqueKeys)
        except OSError as error:
            self.fail(f"cannot be read: {error.strerror}")
        except ValueError as error:
            self.fail(str(error))
        return self.mapping("the file", raw)

    def joints(
        self, raw: object, raw_models: object
    ) -> tuple[tuple[str, ...], tuple[float, ...], tuple[Actuator, ...]]:
        """Names, home positions and actuators, in the order of the file."""
        joints = self.mapping("joints", raw)
        if not joints:
            self.fail("joints is empty; list every hinge and slide joint of the MJCF")
        models = self.mapping("actuators", raw_models)
        home: list[float] = []
        actuators: list[Actuator] = []
        unused = dict(models)
        for name, raw_joint in joints.items():
            where = f"joints.{name}"
            joint = self.mapping(where, raw_joint)
            self.keys(where, joint, required=("home",), optional=("actuator",))
            home.append(self.number(f"{where}.home", joint["home"]))
            model = joint.get("actuator")
            if model is None:  # passive
                continue
            if not isinstance(model, str) or model not in models:
                self.fail_name(f"{where} names the undefined actuator", model, models)
            unused.pop(model, None)
            actuators.append(self.actuator(model, name, models[model]))
        if unused:
            self.fail(f"actuators.{next(iter(unused))} drives no joint; use it in a joint, or remove it")
        return tuple(joints), tuple(home), tuple(actuators)

    def actuator(self, name: str, joint: str, raw: object) -> Actuator:
        where = f"actuators.{name}"
        model = self.mapping(where, raw)
        kind = model.get("kind")
        if kind not in KINDS:
            self.fail_name(f"{where}.kind is", kind, KINDS)
        gains = ("kp", "kd") if kind == "position" else ()
        self.keys(where, model, required=("kind", *gains, "effort"))
        kp, kd = (self.number(f"{where}.{gain}", model.get(gain, 0.0)) for gain in ("kp", "kd"))
        effort = self.number(f"{where}.effort", model["effort"])
        if effort <= 0 or kp < 0 or kd < 0:
            self.fail(f"{where} has kp {kp:g}, kd {kd:g}, effort {effort:g}; gains are >= 0, effort is > 0")
        return Actuator(joint, kind, kp, kd, effort)

    def solver(self, raw: object) -> dict[str, dict[str, Any]]:
        solver = {
            name: dict(self.mapping(f"solver.{name}", o)) for name, o in self.mapping("solver", raw).items()
        }
        if not solver:
            self.fail("solver is empty; give each backend its options, at least mujoco: {timestep: 0.005}")
        for name, options in solver.items():
            where = f"solver.{name}.timestep"
            if "timestep" not in options or self.number(where, options["timestep"]) <= 0:
                self.fail(f"{where} is missing or not > 0; give the physics step in seconds, such as 0.005")
        return solver

    def mirror(
        self, raw: object, joints: tuple[str, ...], actuated: list[str], feet: tuple[str, ...]
    ) -> Mirror | None:
        if raw is None:
            return None
        raw = self.mapping("mirror", raw)
        self.keys("mirror", raw, required=("left", "right", "flip"))
        left, right = (self.text(f"mirror.{side}", raw[side]) for side in ("left", "right"))
        mirror = Mirror(left, right, self.names("mirror.flip", raw["flip"]))
        for kind, names in (("joint", joints), ("actuated joint", actuated), ("foot", feet)):
            for name in names:
                if mirror.twin(name) not in names:
                    self.fail_name(f"mirror: {kind} {name} has no mirror image", mirror.twin(name), names)
        bases = {mirror.base(name): None for name in joints}
        for name in mirror.flip:
            if name not in bases:
                self.fail_name("mirror.flip names the unknown joint", name, bases)
        return mirror

    # Values of one type, and the messages about them.

    def keys(
        self, where: str, raw: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()
    ) -> None:
        required, valid = tuple(required), (*required, *optional)
        for key in raw:
            if key not in valid:
                self.fail_name(f"{where} has the unknown key", key, valid)
        for key in required:
            if key not in raw:
                self.fail(f"{where} has no {key}; it requires {listing(required)}")

    def mapping(self, where: str, raw: object) -> Mapping[str, Any]:
        if not isinstance(raw, Mapping):
            self.fail(f"{where} is {quote(raw)}; it must be a mapping of names to values")
        for key in raw:
            if not isinstance(key, str):
                self.fail(
                    f"{where} has the key {quote(key)}, which YAML does not parse as text; put it in quotes"
                )
        return raw

    def text(self, where: str, raw: object) -> str:
        if not isinstance(raw, str) or not raw:
            self.fail(f"{where} is {quote(raw)}; it must be text")
        return raw

    def number(self, where: str, raw: object) -> float:
        # YAML 1.1 parses 1e-3 as text: only 1.0e-3 is a number.
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) <= LARGEST:
            self.fail(f"{where} is {quote(raw)}; it must be a finite number (with an exponent: 1.0e-3)")
        return float(raw)

    def names(self, where: str, raw: object) -> tuple[str, ...]:
        if not isinstance(raw, list) or not all(isinstance(name, str) and name for name in raw):
            self.fail(f"{where} is {quote(raw)}; it must be a list of names")
        if len(set(raw)) != len(raw):
            self.fail(f"{where} is {quote(raw)}; list each name once")
        return tuple(raw)
