"""Converts robots and objects to the USD files that Isaac Lab loads, and caches them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mujoco

from robolearn.envs import mjcf
from robolearn.envs.elements import FLOOR_FRICTION, add_object
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Object
from robolearn.errors import ConfigError

RECIPE = 2
"""Version of the conversion; raise it when the USD file of the same robot changes."""

GROUND = f"""#usda 1.0
(
    defaultPrim = "ground"
    metersPerUnit = 1
    upAxis = "Z"
)

def Xform "ground"
{{
    def Plane "plane" (prepend apiSchemas = ["PhysicsCollisionAPI", "MaterialBindingAPI"])
    {{
        uniform token axis = "Z"
        rel material:binding:physics = </ground/surface>
    }}

    def Material "surface" (prepend apiSchemas = ["PhysicsMaterialAPI"])
    {{
        float physics:staticFriction = {FLOOR_FRICTION}
        float physics:dynamicFriction = {FLOOR_FRICTION}
    }}
}}
"""
"""An infinite floor; Isaac Lab would download its own from a server."""


def cache_folder() -> Path:
    """The cache of converted robots: $XDG_CACHE_HOME/robolearn/usd, or ~/.cache/robolearn/usd."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "robolearn" / "usd"


def robot_usd(robot: Robot) -> Path:
    """The path of the robot's USD file, converted on first use.

    The file's name contains a hash of its inputs: the MJCF, its meshes and the converter's version.

    Raises:
        ConfigError: the MJCF has something that the conversion to USD would lose, or the cache cannot be written.
    """
    return _converted(clean(robot), robot.name, str(robot.mjcf))


def object_usd(thing: Object) -> Path:
    """The path of the USD file of an object that can move, converted on first use; its body is `usd_name("body", 1)`.

    Raises:
        ConfigError: the cache cannot be written.
    """
    spec = mujoco.MjSpec()
    spec.modelname = "robot"
    add_object(
        spec, "", replace(thing, position=(0.0, 0.0, 0.0), quat=(1.0, 0.0, 0.0, 0.0)), usd_name("body", 1)
    )
    spec.geoms[0].name = "geom0000"
    spec.joints[0].name = ""
    body = spec.bodies[1]
    model = spec.copy().compile()
    body.explicitinertial = True
    body.mass, body.inertia, body.ipos, body.iquat = (
        getattr(model, name)[1] for name in ("body_mass", "body_inertia", "body_ipos", "body_iquat")
    )
    return _converted(spec, thing.shape, f"object {thing}")


def _converted(spec: mujoco.MjSpec, name: str, what: str) -> Path:
    """The USD file of a cleaned spec, from the cache where it is there; `what` names it in errors."""
    xml = to_xml(spec)

    def make(folder: Path) -> Path:
        source = folder / "robot.xml"
        source.write_text(xml, encoding="utf-8")
        try:
            convert(source, folder / "robot")
        except (ImportError, OSError):
            raise
        except Exception as error:  # USD's errors, among others
            raise ConfigError(f"{what}: cannot be converted to USD: {_reason(error)}") from error
        made = next(iter(sorted((folder / "robot").glob("*.usd*"))), None)
        if made is None or not _is_nonempty(made):
            raise ConfigError(f"{what}: cannot be converted to USD: nothing was written")
        return made

    return _cached(f"{name}-{digest(spec, xml)}.usdc", make)


def ground_usd() -> Path:
    """The path of the floor's USD file.

    Raises:
        ConfigError: the cache cannot be written.
    """

    def make(folder: Path) -> Path:
        made = folder / "ground.usda"
        made.write_text(GROUND, encoding="utf-8")
        return made

    return _cached(f"ground-{hashlib.sha256(GROUND.encode()).hexdigest()[:16]}.usda", make)


def _cached(name: str, make: Callable[[Path], Path]) -> Path:
    """The cached file of this name. If it is missing or empty, `make` writes it in an empty folder first.

    The file is moved into the cache atomically, so several processes may do this at once.
    """
    folder = cache_folder()
    file = folder / name
    try:
        if not _is_nonempty(file):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{file.stem}-", dir=folder, ignore_cleanup_errors=True
            ) as building:
                made = make(Path(building))
                with made.open("rb+") as content:
                    os.fsync(content.fileno())  # the content must reach the disk before the rename
                os.replace(made, file)
    except OSError as error:
        raise ConfigError(
            f"cannot write converted robots to {folder}: {error.strerror or error}; set XDG_CACHE_HOME to a folder "
            "that can be written"
        ) from error
    return file


def _is_nonempty(file: Path) -> bool:
    """Whether the file exists and is not empty; a power loss can leave empty files."""
    return file.is_file() and file.stat().st_size > 0


def _reason(error: Exception) -> str:
    """One line: of a USD error only its message, without the place in USD's source."""
    text = " ".join(str(error).split())
    found = re.search(r"Python runtime error: (.*?)'?$", text)
    return found[1] if found else text or type(error).__name__


def digest(spec: mujoco.MjSpec, xml: str) -> str:
    """A hash of the inputs of the conversion: the cleaned MJCF, its meshes and the converters' versions."""
    parts = [str(RECIPE).encode(), xml.encode()]
    parts += [
        f"{name} {importlib.metadata.version(name)}".encode() for name in ("mujoco", "mujoco-usd-converter")
    ]
    for mesh in spec.meshes:
        file = Path(spec.meshdir) / mesh.file
        parts.append(file.read_bytes() if mesh.file and file.is_file() else b"")
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def clean(robot: Robot) -> mujoco.MjSpec:
    """The robot's MJCF, changed so that its conversion to USD keeps the physics.

    - Every body states its inertia: the converter drops the geoms that do not collide, with their mass.
    - Geoms and lights of the world body are removed: a floor among them would become part of the robot.
    - Visual geoms and sites are removed: Isaac Lab does not draw them, and the backend computes the soles.
    - Bodies and joints are named by their MuJoCo ids (`usd_name`): USD does not accept every name and sorts by name,
      and that order decides in which order the joints of a body rotate.

    Raises:
        ConfigError: the MJCF has equality constraints, tendons, contact pairs or exclusions with the world, a body
            without a name, a body whose joints have different anchors, a joint with an actuatorfrcrange or a ref, or a
            mesh without a file.
    """
    spec = mjcf.robot_bodies(robot)
    spec.modelname = "robot"  # the name of the file and of its root prim
    model = spec.copy().compile()
    _check_supported(robot, spec, model)
    renamed: list[tuple[Any, str]] = []
    for body in spec.bodies:
        if body.name == spec.worldbody.name:
            continue
        number = model.body(body.name).id
        body.explicitinertial = True
        body.mass, body.inertia = model.body_mass[number], model.body_inertia[number]
        body.ipos, body.iquat = model.body_ipos[number], model.body_iquat[number]
        renamed.append((body, usd_name("body", number)))
    for geom in list(spec.geoms):
        if geom.parent.name == spec.worldbody.name or not (geom.contype or geom.conaffinity):
            spec.delete(geom)
    for number, geom in enumerate(spec.geoms):  # a name that no body or joint has
        renamed.append((geom, f"geom{number:04d}"))
    hinges = [joint for joint in spec.joints if joint.type != mujoco.mjtJoint.mjJNT_FREE]
    renamed += [(joint, usd_name("joint", model.joint(joint.name).id)) for joint in hinges]
    for number, (element, _) in enumerate(
        renamed
    ):  # first to temporary names: the robot may use the new ones
        element.name = f"~{number}"
    for element, name in renamed:
        element.name = name
    for exclude in spec.excludes:
        exclude.bodyname1, exclude.bodyname2 = (
            usd_name("body", model.body(name).id) for name in (exclude.bodyname1, exclude.bodyname2)
        )
    for element in [*spec.lights, *spec.cameras, *spec.sites, *spec.keys]:
        spec.delete(element)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
        elif not mesh.file:
            raise ConfigError(
                f"{robot.mjcf}: mesh {mesh.name} has no file, which backend=isaaclab does not support; "
                "write it to an STL or OBJ file"
            )
    if spec.meshes:  # the cleaned MJCF is in another folder
        spec.meshdir = str((robot.mjcf.parent / spec.meshdir).resolve())
    spec.compile()
    return spec


def usd_name(kind: Literal["body", "joint"], number: int) -> str:
    """The USD name of the body or joint with this MuJoCo id."""
    return f"{kind}{number:04d}"


def mujoco_id(path: str) -> int:
    """The MuJoCo id of the body or joint with this USD path or name."""
    found = re.fullmatch(r"(?:body|joint)(\d{4,})", path.rpartition("/")[2])
    assert found, path
    return int(found[1])


def to_xml(spec: mujoco.MjSpec) -> str:
    """A cleaned MJCF as text, without materials and textures, also in its defaults."""
    root = ElementTree.fromstring(spec.to_xml())
    for geom in root.iter("geom"):
        geom.attrib.pop("material", None)
    for assets in root.iter("asset"):
        for kind in ("material", "texture"):
            for element in assets.findall(kind):
                assets.remove(element)
    return ElementTree.tostring(root, encoding="unicode")


def _check_supported(robot: Robot, spec: mujoco.MjSpec, model: mujoco.MjModel) -> None:
    """Raise ConfigError for the first element that the conversion to USD would lose."""
    parts: dict[str, Any] = {
        "equality constraints": spec.equalities,
        "tendons": spec.tendons,
        "contact pairs": spec.pairs,
    }
    for what, found in parts.items():
        if len(found):
            raise ConfigError(
                f"{robot.mjcf}: has {what}, which backend=isaaclab does not support; remove them"
            )
    world = spec.worldbody.name
    for exclude in spec.excludes:
        if world in (exclude.bodyname1, exclude.bodyname2):
            raise ConfigError(
                f"{robot.mjcf}: has a contact exclusion with the body {world}, which backend=isaaclab does not "
                "support: the floor is not part of the robot there; remove it"
            )
    if model.nbody == 2:
        raise ConfigError(
            f"{robot.mjcf}: is a single body, which Isaac Lab does not accept as a robot; make it the child of a body "
            "without a joint"
        )
    for body in spec.bodies:
        if not body.name:
            raise ConfigError(
                f"{robot.mjcf}: a body has no name; backend=isaaclab requires one for every body"
            )
        anchors = {tuple(joint.pos) for joint in body.joints}
        if len(anchors) > 1:
            raise ConfigError(
                f"{robot.mjcf}: the joints of body {body.name} have different pos, which backend=isaaclab does not "
                "support; give each joint a separate body"
            )
    for number in range(model.njnt):
        if model.jnt_type[number] == mujoco.mjtJoint.mjJNT_FREE:
            continue
        name = model.joint(number).name
        if model.jnt_actfrclimited[number]:
            raise ConfigError(
                f"{robot.mjcf}: joint {name} has an actuatorfrcrange, which backend=isaaclab does not support; "
                "remove it and state the actuator's effort in robot.yaml"
            )
        if model.qpos0[model.jnt_qposadr[number]]:  # Isaac Lab measures positions relative to ref
            raise ConfigError(
                f"{robot.mjcf}: joint {name} has a ref, which backend=isaaclab does not support; remove it and rotate "
                "or move the body instead"
            )


def convert(xml: Path, folder: Path) -> None:
    """Convert one MJCF file to a folder of USD, without a scene, in one layer and without printing."""
    import mujoco_usd_converter
    import usdex.core

    before, active = usdex.core.getDiagnosticsLevel(), usdex.core.isDiagnosticsDelegateActive()
    usdex.core.activateDiagnosticsDelegate()  # without it USD prints all diagnostics
    usdex.core.setDiagnosticsLevel(usdex.core.DiagnosticsLevel.eError)
    try:
        mujoco_usd_converter.Converter(layer_structure=False, scene=False).convert(str(xml), str(folder))
    finally:
        usdex.core.setDiagnosticsLevel(before)
        if not active:
            usdex.core.deactivateDiagnosticsDelegate()
