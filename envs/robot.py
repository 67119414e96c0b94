"""Robot: names, joint order, home pose and actuators, read from robot.yaml and the robot's MJCF or URDF."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from robolearn.config.catalog import PACKAGE, locate
from robolearn.config.yaml_file import PlainLoader, parse
from robolearn.envs.actuators import model as motors
from robolearn.envs.mirror import Mirror as Mirror
from robolearn.envs.mirror import without_side
from robolearn.errors import ConfigError, did_you_mean, listing, near, quote

if TYPE_CHECKING:
    from robolearn.envs.parts import Part

SCHEMA = 2
"""Version of robot.yaml. Of a file of schema 2, whatever it leaves out is derived from the MJCF or URDF; one of schema
1 is complete."""
KEYS = (
    "schema",
    "description",
    "mjcf",
    "base",
    "home_height",
    "feet",
    "bodies",
    "joints",
    "actuators",
    "mirror",
    "solver",
)
"""Keys of robot.yaml."""
SOLVERS = ("mujoco", "mujoco_warp", "differentiable", "newton", "isaaclab")
"""Backends of RoboLearn that `solver:` may have options for; those of other packages may have any name."""
MODELS = (".xml", ".urdf", ".mjcf")
"""Endings of the files that describe a robot's bodies."""
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
    armature: float | None = None
    """Inertia of the motor's rotor as the joint feels it [kg m^2 or kg]; None: what the file says."""
    motor: motors.MotorModel | None = None
    """How joint targets become torque; None: as `kind` says, inside the solver."""

    @property
    def outside(self) -> bool:
        """Whether its torque is computed outside the simulator; see `robolearn.envs.actuators`."""
        return self.motor is not None and self.motor.outside

    @property
    def has_gains(self) -> bool:
        """Whether its torque is kp (joint target - position) - kd velocity, within limits."""
        return self.kind == "position" and (self.motor is None or self.motor.name in ("explicit", "dc"))


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
    source: Path
    """The file that describes it, which error messages name: robot.yaml, or the MJCF or URDF itself."""
    mjcf: Path
    """Its MJCF or URDF file: bodies, joints, geoms and sites. `build_spec` adds floor, actuators, sensors and
    options."""
    base: str | None
    """The free-floating body; None for a robot fixed to the world."""
    home_height: float
    """z of the base [m] at which the soles just touch the ground in the home pose; 0 without a free base."""
    feet: tuple[str, ...]
    """Bodies that stand on the ground. The centre of a foot's sole is the MJCF's site of the same name, or in
    `soles`."""
    bodies: tuple[str, ...]
    """Bodies whose positions are in State."""
    joints: tuple[str, ...]
    """Every hinge and slide joint, in the robot's order."""
    home: tuple[float, ...]
    """Home position of each joint [rad or m]."""
    actuators: tuple[Actuator, ...]
    """One for each actuated joint, in the order of `joints`."""
    solver: dict[str, dict[str, Any]] = field(hash=False)
    """Simulator options by backend name; for a backend without any, those of the MJCF hold (`robolearn.envs.mjcf`)."""
    soles: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict, hash=False)
    """Position (3,) [m] and orientation (4,) wxyz of each sole's centre in the frame of its foot, for feet without a
    site of their name."""
    apart: tuple[tuple[str, str], ...] = ()
    """Pairs of bodies that do not collide with one another."""
    derived: bool = False
    """Whether what its robot.yaml leaves out is derived from its file."""
    mirror: Mirror | None = None
    """Left-right symmetry; None for a robot without it."""
    part: Part | None = None
    """Where it is in another robot, of which it is a part; see `robolearn.envs.parts`."""

    @property
    def path(self) -> Path:
        """The folder of its robot.yaml, or of its file without one."""
        return self.source.parent

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
        return permutation, [-1.0 if self.mirror.flips(name) else 1.0 for name in names]

    @classmethod
    def load(cls, path: str | Path, changes: Mapping[str, Any] | None = None, name: str = "") -> Robot:
        """Read a robot: a folder with a robot.yaml, that file, or an MJCF or URDF file.

        What robot.yaml leaves out is derived from the MJCF or URDF. Beside such a file, the robot.yaml that names it
        holds.

        Args:
            path: the folder or file.
            changes: keys of robot.yaml with other values, nested as there.
            name: the robot's name; that of the folder or file where empty.

        Raises:
            ConfigError: a file is invalid; one line with the file, the offender, the valid choices and the fix.
        """
        path = Path(path).resolve()
        if path.suffix.lower() in MODELS:
            beside = path.parent / "robot.yaml"
            if beside.is_file() and _Reader(beside).names_model(path):
                path = beside
            else:
                return _Reader(path, {"schema": SCHEMA, "mjcf": str(path)}, changes, name).robot()
        return _Reader(path if path.suffix == ".yaml" else path / "robot.yaml", None, changes, name).robot()


def _about(
    joint: str,
    chosen: object,
    models: Mapping[str, Any],
    others: Collection[str],
    mirror: Mirror | None = None,
) -> list[str]:
    """The entries of `actuators:` that are about a joint, the more particular the later: patterns by how many
    characters they state, the entry `chosen` for it, its name without a side, and its own, which means it alone. An
    entry of the name of one of the `others` is about that one."""
    chosen = chosen if isinstance(chosen, str) else joint  # other than text is refused where it is read
    names = [chosen, mirror.base(joint) if mirror else joint, without_side(joint)]
    names = [name for name in dict.fromkeys(names) if name != joint and name not in others] + [joint]
    exact = {*names, *others}
    patterns = [m for m in models if m not in exact and (fnmatchcase(joint, m) or fnmatchcase(chosen, m))]
    patterns.sort(key=lambda m: len(m.replace("*", "").replace("?", "")))
    return [*patterns, *(name for name in names if name in models)]


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

    def __init__(
        self,
        file: Path,
        content: Mapping[str, Any] | None = None,
        changes: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> None:
        """`content` stands for the file's."""
        self.file, self.content, self.changes, self.name = file, content, changes or {}, name

    def names_model(self, path: Path) -> bool:
        """Whether this robot.yaml is about the MJCF or URDF file `path`."""
        mjcf = self.document().get("mjcf")
        return isinstance(mjcf, str) and (self.file.parent / mjcf).resolve() == path

    def fail(self, message: str, key: object = None) -> NoReturn:
        """Fail with a message that begins with the path of what is wrong, or of what the wrong `key` is in. Where a
        change has it, that is to blame, and not the file."""
        whole = message.startswith("the file ")
        path = [] if whole else message.split()[0].rstrip(":").split(".")
        if self._changes_have([*path, key] if isinstance(key, str) else path):
            raise ConfigError(f"robot{message.removeprefix('the file')}" if whole else f"robot.{message}")
        raise ConfigError(f"{self.file}: {message}")

    def _changes_have(self, path: list[str]) -> bool:
        if not path:
            return False
        if path[0] == "actuators" and len(path) > 2:
            entries = self.changes.get("actuators", {})
            found = [entry for key, entry in entries.items() if key == path[1] or fnmatchcase(path[1], key)]
            return any(isinstance(entry, Mapping) and path[2] in entry for entry in found)
        inner: object = self.changes
        for key in path:
            if not isinstance(inner, Mapping) or key not in inner:
                return False
            inner = inner[key]
        return True

    def fail_name(self, problem: str, name: object, valid: Iterable[str], key: bool = False) -> NoReturn:
        """Fail with `problem`, the wrong `name` and the valid names; `key`: it is a key of what `problem` begins with,
        and not its value."""
        valid = tuple(valid)
        near = did_you_mean(name, valid) if isinstance(name, str) else ""
        self.fail(f"{problem} {quote(name)}{near} (valid: {listing(valid, 24)})", name if key else None)

    def robot(self) -> Robot:
        raw = _changed(self.document(), self.changes)
        schema = raw.get("schema")
        if schema not in (1, SCHEMA) or isinstance(schema, bool):
            self.fail(
                f"schema is {quote(schema)}, this version of RoboLearn reads schema 1 and {SCHEMA}; "
                "convert the file, or use the version of RoboLearn it was written for"
            )
        complete = schema == 1
        required = ("schema", "description", "mjcf", "joints", "solver") if complete else ("schema", "mjcf")
        self.keys("the file", raw, required, [key for key in KEYS if key not in required])
        mjcf = self.model_path(raw["mjcf"])
        about = {
            "name": self.name or _name_of(self.file),
            "description": self.text("description", raw.get("description") or f"the robot of {mjcf.name}"),
            "source": self.file,
            "mjcf": mjcf,
            "solver": self.solver(raw.get("solver", {}), complete),
        }
        return self.stated(raw, about) if complete else self.derived(raw, about)

    def stated(self, raw: Mapping[str, Any], about: dict[str, Any]) -> Robot:
        """The robot of a complete file, of schema 1."""
        base = self.base_name(raw["base"]) if raw.get("base") is not None else None
        if base is not None and "home_height" not in raw:
            self.fail(f"home_height is missing; give the z of {base} [m] at which the soles touch the ground")
        joints, home, actuators = self.joints(raw["joints"], raw.get("actuators", {}))
        feet = self.names("feet", raw.get("feet", []))
        return Robot(
            **about,
            base=base,
            home_height=self.height(base, raw),
            feet=feet,
            bodies=self.names("bodies", raw.get("bodies", [])),
            joints=joints,
            home=home,
            actuators=actuators,
            mirror=self.mirror(raw.get("mirror"), joints, [a.joint for a in actuators], feet),
        )

    def derived(self, raw: Mapping[str, Any], about: dict[str, Any]) -> Robot:
        """The robot of a file that may leave out what the MJCF or URDF tells."""
        from robolearn.envs import derive, model_file  # they import MuJoCo

        file = model_file.read(about["mjcf"])
        found = derive.joints(file)
        base = derive.base(file) if "base" not in raw else raw["base"]
        if base is not None:
            base = self.known("base names", self.base_name(base), [body.name for body in file.spec.bodies])
        given = self.mapping("joints", raw.get("joints", {}))
        for name in given:
            self.known("joints names", name, found)
            self.keys(f"joints.{name}", self.mapping(f"joints.{name}", given[name]), (), ("home", "actuator"))
        joints = tuple(given) if set(given) == set(found) else found
        stated = {n: self.number(f"joints.{n}.home", j["home"]) for n, j in given.items() if "home" in j}
        home = derive.home(file, base is not None, stated)
        feet = self.names("feet", raw["feet"]) if "feet" in raw else derive.feet(file, base is not None, home)
        for foot in feet:
            self.known("feet names", foot, [body.name for body in file.spec.bodies])
        sites = {site.name for site in file.spec.sites}
        stated_mirror = "mirror" in raw
        mirror = (
            self.mirror(raw["mirror"], joints, [], feet) if stated_mirror else derive.mirror(file, base, feet)
        )
        step = about["solver"].get("mujoco", {}).get("timestep", float(file.model.opt.timestep))
        armatures = self.armatures(raw, given, joints, mirror)
        drives = derive.drives(file, base is not None, home, step, armatures)
        actuators = self.actuators(raw, given, joints, mirror, drives)
        if not actuators:
            self.fail("no joint has an actuator, so nothing can move the robot; give one in actuators")
        if mirror is not None:
            lone = mirror.lone([actuator.joint for actuator in actuators], feet)
            if lone and stated_mirror:
                self.fail(
                    f"mirror: {lone} has no mirror image with an actuator, or among the feet; set mirror: null"
                )
            mirror = None if lone else mirror
        height = self.height(base, raw) if "home_height" in raw else None
        if height is None:
            height = derive.home_height(file, base, home, feet) if base else 0.0
        return Robot(
            **about,
            base=base,
            home_height=height,
            feet=feet,
            bodies=self.names("bodies", raw["bodies"]) if "bodies" in raw else derive.bodies(file, feet),
            joints=joints,
            home=tuple(home[name] for name in joints),
            actuators=actuators,
            soles={foot: derive.sole(file, home, foot) for foot in feet if foot not in sites},
            apart=tuple(derive.touching(file, home)),
            derived=True,
            mirror=mirror,
        )

    def actuators(
        self,
        raw: Mapping[str, Any],
        given: Mapping[str, Any],
        joints: tuple[str, ...],
        mirror: Mirror | None,
        drives: Mapping[str, Any],
    ) -> tuple[Actuator, ...]:
        """One for each joint with a motor, in the order of `joints`: what the file says, changed by `actuators:`."""
        models = self.mapping("actuators", raw.get("actuators", {}))
        for name, model in models.items():
            self.keys(
                f"actuators.{name}",
                self.mapping(f"actuators.{name}", model),
                (),
                ("kind", "kp", "kd", "effort", "armature", *motors.KEYS),
            )
        used = set()
        out = []
        for joint in joints:
            chosen = given.get(joint, {}).get("actuator", joint)
            if (
                chosen is not None
                and chosen != joint
                and (not isinstance(chosen, str) or chosen not in models)
            ):
                self.fail_name(f"joints.{joint} names the undefined actuator", chosen, models)
            matching = _about(joint, chosen, models, joints, mirror)
            used.update(matching)
            if chosen is None:  # passive
                continue
            if joint not in drives and not matching:
                continue
            start = drives.get(joint)
            now = {"kind": "position"} | (
                {"kp": start.kp, "kd": start.kd, "effort": start.effort} if start else {}
            )
            for name in matching:
                now = motors.merged(now, models[name])
                if models[name].get("kind") == "force" and {"kp", "kd"} & set(models[name]):
                    self.fail(f"actuators.{name} is of kind force, which has no kp and kd; remove them")
            if now["kind"] == "force":
                now = {key: value for key, value in now.items() if key not in ("kp", "kd")}
            out.append(self.actuator(matching[-1] if matching else joint, joint, now))
        for name in models:
            if name not in used:
                valid = {*joints, *(without_side(joint) for joint in joints)}
                self.fail_name("actuators names no joint, nor several with *,", name, sorted(valid), key=True)
        return tuple(out)

    def armatures(
        self, raw: Mapping[str, Any], given: Mapping[str, Any], joints: tuple[str, ...], mirror: Mirror | None
    ) -> dict[str, float]:
        """The armature of each joint for which `actuators:` states one."""
        models = self.mapping("actuators", raw.get("actuators", {}))
        found = {}
        for joint in joints:
            for name in _about(joint, given.get(joint, {}).get("actuator", joint), models, joints, mirror):
                if "armature" in self.mapping(f"actuators.{name}", models[name]):
                    found[joint] = self.number(f"actuators.{name}.armature", models[name]["armature"])
        return found

    def height(self, base: str | None, raw: Mapping[str, Any]) -> float:
        if base is None and "home_height" in raw:
            self.fail("home_height is only for a robot with a free base; remove it, or name the body in base")
        return self.number("home_height", raw.get("home_height", 0.0))

    def model_path(self, raw: object) -> Path:
        name = self.text("mjcf", raw)
        found = locate(name) if name.startswith(PACKAGE) else self.file.parent / name
        if not found.is_file():
            where = "" if found.is_absolute() and str(found) == name else f" in {self.file.parent}"
            self.fail(f"mjcf names {quote(name)}, which is not a file{where}; correct the name")
        return found

    def known(self, problem: str, name: str, valid: Iterable[str]) -> str:
        valid = tuple(valid)
        if name not in valid:
            self.fail_name(problem, name, valid)
        return name

    def base_name(self, raw: Any) -> str:
        """What `base:` states, a body that moves."""
        if raw == "world":
            self.fail("base: world is no body that moves; null is for a robot that is fixed to the world")
        return self.text("base", raw)

    def document(self) -> Mapping[str, Any]:
        """The parsed file, which must be a mapping."""
        if self.content is not None:
            return self.content
        if not self.file.is_file():
            self.fail("no such file; a robot is a folder with a robot.yaml, or an MJCF or URDF file")
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
        kinds = {
            k for j in joints.values() if isinstance(j, Mapping) and isinstance(k := j.get("actuator"), str)
        }
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
            entry: dict[str, Any] = {}
            for each in _about(name, model, models, kinds - {model}):
                unused.pop(each, None)
                entry = motors.merged(entry, self.mapping(f"actuators.{each}", models[each]))
            actuators.append(self.actuator(model, name, entry))
        if unused:
            name, used = next(iter(unused)), [each for each in models if each not in unused]
            near = did_you_mean(name, used) or "; use it in a joint, or remove it"
            self.fail(f"actuators.{name} drives no joint{near} (used: {listing(used, 24)})")
        return tuple(joints), tuple(home), tuple(actuators)

    def actuator(self, name: str, joint: str, raw: object) -> Actuator:
        where = f"actuators.{name}"
        model = self.mapping(where, raw)
        kind = model.get("kind")
        if kind not in KINDS:
            self.fail_name(f"{where}.kind is", kind, KINDS)
        gains = ("kp", "kd") if kind == "position" else ()
        self.keys(where, model, required=("kind", *gains, "effort"), optional=("armature", *motors.KEYS))
        kp, kd = (self.number(f"{where}.{gain}", model.get(gain, 0.0)) for gain in ("kp", "kd"))
        effort = self.number(f"{where}.effort", model["effort"])
        if effort <= 0 or kp < 0 or kd < 0:
            self.fail(f"{where} has kp {kp:g}, kd {kd:g}, effort {effort:g}; gains are >= 0, effort is > 0")
        armature = None
        if "armature" in model:
            armature = self.number(f"{where}.armature", model["armature"])
            if armature < 0:
                self.fail(f"{where}.armature is {armature:g}; an inertia is 0 or more")
        return Actuator(joint, kind, kp, kd, effort, armature, motors.read(self, where, model, kind))

    def solver(self, raw: object, complete: bool) -> dict[str, dict[str, Any]]:
        solver = {
            name: dict(self.mapping(f"solver.{name}", o)) for name, o in self.mapping("solver", raw).items()
        }
        if complete and not solver:
            self.fail("solver is empty; give each backend its options, at least mujoco: {timestep: 0.005}")
        for name, options in solver.items():
            if name not in SOLVERS and near(name, SOLVERS, cutoff=0.75):
                self.fail_name("solver names the backend", name, SOLVERS)
            where = f"solver.{name}.timestep"
            if not complete and "timestep" not in options:
                continue
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
        left, right = (self.prefixes(f"mirror.{side}", raw[side]) for side in ("left", "right"))
        if not left or len(left) != len(right):
            self.fail(
                f"mirror.left has {len(left)} prefixes and mirror.right {len(right)}; give them in pairs, such as "
                "left: [FL_, RL_], right: [FR_, RR_]"
            )
        if both := [prefix for prefix in left if prefix in right]:
            self.fail(f"mirror.left and mirror.right are both {quote(both[0])}; give the prefix of each side")
        flip = self.names("mirror.flip", raw["flip"])
        mirror = Mirror.by_prefix(left, right, flip, (*joints, *feet))
        for kind, names in (("joint", joints), ("actuated joint", actuated), ("foot", feet)):
            for name in names:
                if mirror.twin(name) not in names:
                    self.fail_name(f"mirror: {kind} {name} has no mirror image", mirror.twin(name), names)
        bases = {mirror.base(name): None for name in joints}
        for name in flip:
            if name not in bases:
                self.fail_name("mirror.flip names the unknown joint", name, bases)
        return mirror

    def prefixes(self, where: str, value: object) -> tuple[str, ...]:
        """One prefix, or a list of some."""
        return self.names(where, value) if isinstance(value, list) else (self.text(where, value),)

    # Values of one type, and the messages about them.

    def keys(
        self, where: str, raw: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()
    ) -> None:
        required, valid = tuple(required), (*required, *optional)
        for key in raw:
            if key not in valid:
                self.fail_name(f"{where} has the unknown key", key, valid, key=True)
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


def _merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`content` with the values of `changes`, which is nested alike."""
    merged = dict(content)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merged(old, value)
        merged[key] = value
    return merged


def _changed(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a robot.yaml with changes. A change of a motor's model or kind does away with what the same entry
    of the file says of the one before: nothing on a command line can remove a key."""
    merged = _merged(content, changes)
    old, new = content.get("actuators"), changes.get("actuators")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name, change in new.items():
            entry = old.get(name)
            if not isinstance(entry, Mapping) or not isinstance(change, Mapping):
                continue
            model = change.get("model")
            if change.get("kind") == "force":
                entry = {key: value for key, value in entry.items() if key not in ("kp", "kd")}
                merged["actuators"][name] = motors.merged(entry, change)
            if isinstance(model, str) and model in motors.MODELS:
                taken = (*motors.MODELS[model], "model")
                kept = {key: value for key, value in entry.items() if key not in motors.KEYS or key in taken}
                merged["actuators"][name] = motors.merged(kept, change)
    return merged


def _name_of(file: Path) -> str:
    """A robot's name: that of its file, or of the folder where the file's says nothing."""
    plain = file.stem.lower() in ("robot", "scene", "model", "urdf", "mjcf")
    return file.resolve().parent.name if plain or not file.stem else file.stem
