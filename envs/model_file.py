"""Reads a robot's MJCF or URDF file: what it says about motors, poses and options, and its bodies without these.

`read` returns a MuJoCo spec of bodies, joints, geoms and sites, in which every body and joint has a name. Actuators,
sensors, keyframes, floor, lights and cameras of the file are taken out: RoboLearn adds its own. What the actuators and
keyframes say is kept as facts, from which `robolearn.envs.derive` describes the robot.
"""

from __future__ import annotations

import functools
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import mujoco
import numpy as np

from robolearn.errors import ConfigError, one_line, quote

LARGEST_MESH = 100_000_000
"""Largest mesh file accepted [bytes]; MuJoCo computes a convex hull of each, which takes minutes for a larger one."""
LARGEST_FILE = 50_000_000
"""Largest MJCF or URDF file accepted [bytes]."""
SHORTEST_STEP, HEAVIEST = 1e-5, 1e6
"""Limits of a file's physics step [s] and of the mass of a body [kg]."""
_MESHES = (".stl", ".obj", ".msh")
_ONE_AXIS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)


@dataclass(frozen=True)
class Drive:
    """What a file says about the motor of one joint, in units of the joint."""

    kp: float
    """Stiffness [Nm/rad or N/m]; 0 for a motor that is given a torque."""
    kd: float
    """Damping [Nm s/rad or N s/m]."""
    effort: float
    """Largest torque or force [Nm or N]; inf without a limit."""


@dataclass(frozen=True)
class ModelFile:
    """A robot's file, parsed and compiled."""

    path: Path
    spec: mujoco.MjSpec
    """Bodies, joints, geoms and sites, all named where RoboLearn needs a name. Copy it before changing it."""
    model: mujoco.MjModel
    """The file as it is, compiled, actuators and keyframes included."""
    drives: dict[str, Drive]
    """By joint; empty where the file has no actuators."""
    has_actuators: bool
    """Whether the file describes actuators at all."""
    urdf: bool
    """Whether the file is a URDF, which never says whether its base is free."""
    on_world: bool = False
    """Of a URDF: whether its root is the link `world`, to which it is then fixed."""
    notes: tuple[str, ...] = field(default=())
    """What of the file is not used, a line each."""

    def fail(self, message: str) -> NoReturn:
        """Raise a ConfigError that begins with the file."""
        raise ConfigError(f"{self.path}: {message}")


def read(path: Path) -> ModelFile:
    """The parsed file; read once as long as it does not change.

    Raises:
        ConfigError: it cannot be read or compiled; one line that names the file and the element.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return _read(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> ModelFile:
    if size > LARGEST_FILE:
        raise ConfigError(
            f"{path}: is {size / 1e6:.0f} MB; a robot's file has at most {LARGEST_FILE / 1e6:.0f} MB"
        )
    root = _xml(path)
    urdf = root.tag == "robot"
    if root.tag not in ("robot", "mujoco"):
        raise ConfigError(f"{path}: its root element is <{root.tag}>, not <mujoco> (MJCF) or <robot> (URDF)")
    try:
        meshes: dict[str, bytes] = {}
        unseen: list[str] = []
        if urdf:
            _check_tree(path, root)
            text, meshes, unseen = _urdf_for_mujoco(path, root)
            spec = mujoco.MjSpec.from_string(text, assets=meshes)
        else:
            spec = mujoco.MjSpec.from_file(str(path))
        _check_meshes(path, spec, next(root.iter("include"), None) is not None, meshes)
        _name_all(spec)
        _free_floor_pairs(spec)
        model = spec.copy().compile()
    except ConfigError:
        raise
    except (ValueError, RuntimeError, OSError, mujoco.FatalError) as error:
        raise ConfigError(f"{path}: {one_line(str(error))}") from None
    _check_numbers(path, model)
    drives, notes = _drives(model)
    has_actuators = model.nu > 0
    for elements in (spec.actuators, spec.sensors, spec.keys, spec.cameras, spec.lights, spec.tuples):
        for element in list(elements):
            spec.delete(element)
    for texture in list(spec.textures):
        if texture.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX:
            spec.delete(texture)
    for geom in _floors(spec):
        spec.delete(geom)
    for geom in spec.geoms:
        if geom.name == "floor":  # the name of the floor that is added
            geom.name = _free_name("floor_of_the_file", {g.name for g in spec.geoms})
            for pair in spec.pairs:
                pair.geomname1 = geom.name if pair.geomname1 == "floor" else pair.geomname1
                pair.geomname2 = geom.name if pair.geomname2 == "floor" else pair.geomname2
    on_world = urdf and "world" in {link.get("name") for link in root.findall("link")}
    if unseen:
        notes.append(
            f"{len(unseen)} visual meshes are not found, the first is {unseen[0]}; pictures show the collision shapes"
        )
    return ModelFile(path, spec, model, drives, has_actuators, urdf, on_world, tuple(notes))


def _xml(path: Path) -> ET.Element:
    text = path.read_bytes()
    if b"<!ENTITY" in text:
        raise ConfigError(f"{path}: defines XML entities, which are not read; write the text out")
    try:
        return ET.fromstring(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from None
    except ET.ParseError as error:
        raise ConfigError(f"{path}: is not valid XML: {error}") from None


def _check_tree(path: Path, root: ET.Element) -> None:
    """Check that the links and joints of a URDF form one tree."""
    links = [link.get("name", "") for link in root.findall("link")]
    joints = [joint.get("name", "") for joint in root.findall("joint")]
    for kind, names in (("link", links), ("joint", joints)):
        for name in names:
            if not name or names.count(name) > 1:
                raise ConfigError(
                    f"{path}: {kind} {quote(name)} {'appears twice' if name else 'has no name'}"
                )
    parent: dict[str, str] = {}
    for joint in root.findall("joint"):
        up, down = joint.find("parent"), joint.find("child")
        name = joint.get("name", "")
        if up is None or down is None:
            raise ConfigError(f"{path}: joint {quote(name)} lacks its <parent> or <child>")
        for link in (up.get("link", ""), down.get("link", "")):
            if link not in links:
                raise ConfigError(
                    f"{path}: joint {quote(name)} names the link {quote(link)}, which does not exist"
                )
        mimic = joint.find("mimic")
        if mimic is not None and mimic.get("joint", "") not in joints:
            followed = mimic.get("joint", "")
            raise ConfigError(f"{path}: joint {quote(name)} mimics {quote(followed)}, which does not exist")
        child = down.get("link", "")
        if child in parent:
            raise ConfigError(f"{path}: link {quote(child)} has two parents; a robot is a tree of links")
        parent[child] = up.get("link", "")
    roots = [link for link in links if link not in parent]
    if len(roots) > 1:
        raise ConfigError(
            f"{path}: has {len(roots)} roots, {', '.join(roots[:4])}; a robot is one tree: join them"
        )
    for link in links:
        seen = [link]
        while (up_link := parent.get(seen[-1])) is not None:
            if up_link in seen:
                raise ConfigError(
                    f"{path}: links {', '.join(seen[:4])} form a loop; a robot is a tree of links"
                )
            seen.append(up_link)


def _urdf_for_mujoco(path: Path, root: ET.Element) -> tuple[str, dict[str, bytes], list[str]]:
    """A URDF's text with the mesh files that MuJoCo can read at absolute paths, and the visuals that it cannot left
    out; the content of the files that it cannot find by name; and the visuals whose files are missing."""
    unseen = []
    compiler = root.find("mujoco/compiler")
    folder = compiler.get("meshdir", "") if compiler is not None else ""
    for link in root.findall("link"):
        for kind in ("visual", "collision"):
            for shape in link.findall(kind):
                mesh = shape.find("geometry/mesh")
                if mesh is None:
                    continue
                name = mesh.get("filename", "")
                found = _mesh_file(path, name, folder)
                if kind == "visual" and (found is None or found.suffix.lower() not in _MESHES):
                    link.remove(shape)  # a picture then shows the collision shapes
                    if found is None:
                        unseen.append(quote(name, 160))
                    continue
                where = f"link {quote(link.get('name', ''))}: {kind} mesh {quote(name, 160)}"
                if found is None:
                    raise ConfigError(
                        f"{path}: {where} is not found; a package:// path is looked up in the folders above the file"
                    )
                if found.suffix.lower() not in _MESHES:
                    twin = next(
                        (found.with_suffix(s) for s in _MESHES if found.with_suffix(s).is_file()), None
                    )
                    if twin is None:
                        raise ConfigError(
                            f"{path}: {where} is of a kind that MuJoCo cannot read; convert it to .stl"
                        )
                    found = twin
                mesh.set("filename", str(found))
    for link in root.findall("link"):
        _sound_inertia(path, link)
    for old in root.findall("mujoco"):
        root.remove(old)
    options = ET.SubElement(root, "mujoco")
    ET.SubElement(
        options, "compiler", strippath="false", fusestatic="false", discardvisual="false", balanceinertia="true",
        boundmass="1e-6", boundinertia="1e-9",
    )  # fmt: skip
    content = _unique_mesh_names(root)
    return ET.tostring(root, encoding="unicode"), content, unseen


def _sound_inertia(path: Path, link: ET.Element) -> None:
    """Give a link whose inertia no body can have the smallest one that MuJoCo accepts."""
    inertial = link.find("inertial")
    if inertial is None:
        return
    mass, inertia = inertial.find("mass"), inertial.find("inertia")
    try:
        values = (
            [float(inertia.get(k, 0)) for k in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")]
            if inertia is not None
            else []
        )
        weight = float(mass.get("value", 0)) if mass is not None else 0.0
    except ValueError:
        raise ConfigError(
            f"{path}: link {quote(link.get('name', ''))} has a mass or inertia that is no number"
        ) from None
    if not np.isfinite([*values, weight]).all():
        raise ConfigError(
            f"{path}: link {quote(link.get('name', ''))} has a mass or inertia that is not finite"
        )
    if inertia is None or not values:
        return
    xx, xy, xz, yy, yz, zz = values
    principal = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    if principal[0] <= 0:
        size = max(1e-9, 1e-4 * weight)
        for key in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"):
            inertia.set(key, str(size if key[1] == key[2] else 0.0))


def _unique_mesh_names(root: ET.Element) -> dict[str, bytes]:
    """Rename mesh files that have the name of another one, and return their content by the new name: MuJoCo names a
    mesh by the name of its file alone, and would take the first one for both."""
    first: dict[str, str] = {}
    renamed: dict[str, str] = {}
    content: dict[str, bytes] = {}
    for mesh in root.iter("mesh"):
        file = mesh.get("filename", "")
        name = Path(file).stem
        if first.setdefault(name, file) == file:
            continue
        if file not in renamed:
            renamed[file] = (
                f"{_free_name(name, {*first, *(Path(new).stem for new in content)})}{Path(file).suffix}"
            )
            content[renamed[file]] = Path(file).read_bytes()
        mesh.set("filename", renamed[file])
    return content


def _mesh_file(urdf: Path, name: str, folder: str) -> Path | None:
    """The file of a URDF's mesh, also in the `folder` that its MuJoCo extension names; None where it does not exist."""
    if name.startswith("file://"):
        places = [Path(name.removeprefix("file://"))]
    elif match := re.match(r"(?:package|model)://([^/]+)/(.+)", name):
        package, rest = match.groups()
        places = [folder / part for folder in urdf.parents for part in (f"{package}/{rest}", rest)]
    else:
        places = [urdf.parent / name, urdf.parent / folder / name, urdf.parent / folder / Path(name).name]
    return next((place for place in places if place.is_file()), None)


def _check_meshes(path: Path, spec: mujoco.MjSpec, included: bool, known: Collection[str]) -> None:
    """Check that every mesh file exists and is not too large."""
    folder = path.parent / spec.meshdir
    for mesh in spec.meshes:
        if not mesh.file or mesh.file in known:
            continue
        file = Path(mesh.file) if Path(mesh.file).is_absolute() else folder / mesh.file
        name = mesh.name or Path(mesh.file).stem
        if not file.is_file():
            if not included:
                raise ConfigError(f"{path}: mesh {name}: there is no file {quote(str(file), 160)}")
            continue  # it may be in the folder of an included file, which MuJoCo looks up
        if file.stat().st_size > LARGEST_MESH:
            raise ConfigError(
                f"{path}: mesh {name} has {file.stat().st_size / 1e6:.0f} MB ({file.name}); the largest is "
                f"{LARGEST_MESH / 1e6:.0f} MB: reduce its number of triangles"
            )


def _name_all(spec: mujoco.MjSpec) -> None:
    """Give names to the bodies and one-axis joints that lack them."""
    bodies = {body.name for body in spec.bodies}
    for i, body in enumerate(spec.bodies):
        if not body.name:
            body.name = _free_name(f"body_{i}", bodies)
    joints = {joint.name for joint in spec.joints}
    for joint in spec.joints:
        if not joint.name and joint.type in _ONE_AXIS:
            joint.name = _free_name(f"{joint.parent.name}_joint", joints)


def _floors(spec: mujoco.MjSpec) -> list[mujoco.MjsGeom]:
    """The planes, which MuJoCo allows in the world and in bodies that cannot move."""
    return [geom for geom in spec.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]


def _free_floor_pairs(spec: mujoco.MjSpec) -> None:
    """Let geoms that the file pairs with its floor collide with any floor: its own is taken out."""
    floors = {geom.name for geom in _floors(spec) if geom.name}
    for pair in list(spec.pairs):
        names = {pair.geomname1, pair.geomname2}
        for name in names - floors if names & floors else ():
            geom = spec.geom(name)
            geom.contype = int(geom.contype) | 1
        if names & floors:
            spec.delete(pair)


def _free_name(name: str, taken: set[str]) -> str:
    number = 1
    free = name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free


def _check_numbers(path: Path, model: mujoco.MjModel) -> None:
    if not SHORTEST_STEP <= model.opt.timestep <= 0.1:
        raise ConfigError(
            f"{path}: option timestep is {model.opt.timestep:g} s; it must be between {SHORTEST_STEP:g} and 0.1"
        )
    heavy = np.flatnonzero(model.body_mass > HEAVIEST)
    if len(heavy):
        name = model.body(int(heavy[0])).name
        raise ConfigError(
            f"{path}: body {name} has a mass of {model.body_mass[heavy[0]]:g} kg, at most {HEAVIEST:g}"
        )
    for what, values, names in (
        ("mass", model.body_mass, lambda i: f"body {model.body(i).name}"),
        ("inertia", model.body_inertia, lambda i: f"body {model.body(i).name}"),
        ("position", model.body_pos, lambda i: f"body {model.body(i).name}"),
        ("range", model.jnt_range, lambda i: f"joint {model.joint(i).name}"),
        ("damping", model.dof_damping, lambda i: f"degree of freedom {i}"),
    ):
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1) if len(values) else np.zeros(0, bool)
        if bad.any():
            raise ConfigError(f"{path}: {names(int(np.argmax(bad)))} has a {what} that is not finite")


def _drives(model: mujoco.MjModel) -> tuple[dict[str, Drive], list[str]]:
    """What the actuators of a model say, by joint, and notes on those that are not used."""
    drives: dict[str, Drive] = {}
    notes = []
    affine, fixed = int(mujoco.mjtBias.mjBIAS_AFFINE), int(mujoco.mjtGain.mjGAIN_FIXED)
    for i in range(model.nu):
        name = model.actuator(i).name or f"number {i}"
        if model.actuator_trntype[i] not in (
            int(mujoco.mjtTrn.mjTRN_JOINT),
            int(mujoco.mjtTrn.mjTRN_JOINTINPARENT),
        ):
            notes.append(f"actuator {name} drives no single joint and is left out")
            continue
        joint = int(model.actuator_trnid[i, 0])
        if model.jnt_type[joint] not in (int(t) for t in _ONE_AXIS):
            notes.append(f"actuator {name} drives a free or ball joint and is left out")
            continue
        bias = model.actuator_biasprm[i, :3] if model.actuator_biastype[i] == affine else np.zeros(3)
        if model.actuator_gaintype[i] != fixed or model.actuator_biastype[i] not in (0, affine):
            notes.append(
                f"actuator {name} is no motor or servo (a muscle, for example); it is read as a motor"
            )
        gear = float(model.actuator_gear[i, 0])
        limits = [math.inf]
        if model.actuator_forcelimited[i]:
            limits.append(float(np.abs(model.actuator_forcerange[i]).max()) * abs(gear))
        if model.actuator_ctrllimited[i] and not bias.any():
            gain = float(model.actuator_gainprm[i, 0]) if model.actuator_gaintype[i] == fixed else 1.0
            limits.append(float(np.abs(model.actuator_ctrlrange[i]).max()) * abs(gain * gear))
        if model.jnt_actfrclimited[joint]:
            limits.append(float(np.abs(model.jnt_actfrcrange[joint]).max()))
        drive = Drive(max(0.0, -float(bias[1]) * gear**2), max(0.0, -float(bias[2]) * gear**2), min(limits))
        named = model.joint(joint).name
        if named in drives:  # a position servo and a velocity servo on one joint act together
            old = drives[named]
            drive = Drive(old.kp + drive.kp, old.kd + drive.kd, old.effort + drive.effort)
        drives[named] = drive
    return drives, notes
