"""A robot's MJCF as the USD file that Isaac Lab loads, converted once and kept."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mujoco

from robolearn.envs.mjcf import FLOOR_FRICTION
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError

RECIPE = 2
"""Raised when what is written for the same robot changes."""

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
"""An endless floor; Isaac Lab's own is fetched from a server."""


def cache_folder() -> Path:
    """Where converted robots are kept: $XDG_CACHE_HOME/robolearn/usd, or ~/.cache/robolearn/usd."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "robolearn" / "usd"


def robot_usd(robot: Robot) -> Path:
    """The robot's USD file, converted now if this robot has not been before.

    The file's name has a hash of what goes into it, so that a changed robot, or another converter, has another one.

    Raises:
        ConfigError: the MJCF holds something that does not survive the way through USD, or the file cannot be kept.
    """
    spec = clean(robot)
    xml = written(spec)

    def make(folder: Path) -> Path:
        source = folder / "robot.xml"
        source.write_text(xml, encoding="utf-8")
        try:
            convert(source, folder / "robot")
        except (ImportError, OSError):
            raise
        except Exception as error:  # USD's own, among others
            raise ConfigError(f"{robot.mjcf}: cannot be converted to USD: {_reason(error)}") from error
        made = next(iter(sorted((folder / "robot").glob("*.usd*"))), None)
        if made is None or not _is_whole(made):
            raise ConfigError(f"{robot.mjcf}: cannot be converted to USD: nothing was written")
        return made

    return _kept(f"{robot.name}-{digest(spec, xml)}.usdc", make)


def ground_usd() -> Path:
    """The floor's USD file.

    Raises:
        ConfigError: it cannot be kept.
    """

    def make(folder: Path) -> Path:
        made = folder / "ground.usda"
        made.write_text(GROUND, encoding="utf-8")
        return made

    return _kept(f"ground-{hashlib.sha256(GROUND.encode()).hexdigest()[:16]}.usda", make)


def _kept(name: str, make: Callable[[Path], Path]) -> Path:
    """The file of this name in the cache; where it is missing or empty, what `make` makes in an empty folder.

    It is moved to its place whole: several processes may do this at once, and none sees half a file.
    """
    folder = cache_folder()
    file = folder / name
    try:
        if not _is_whole(file):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{file.stem}-", dir=folder, ignore_cleanup_errors=True
            ) as building:
                made = make(Path(building))
                with made.open(
                    "rb+"
                ) as content:  # its bytes before its name: a rename may reach the disk first
                    os.fsync(content.fileno())
                os.replace(made, file)
    except OSError as error:
        raise ConfigError(
            f"cannot keep converted robots in {folder}: {error.strerror or error}; set XDG_CACHE_HOME to a folder "
            "that can be written"
        ) from error
    return file


def _is_whole(file: Path) -> bool:
    """Whether it is there, with something in it: a machine that loses power leaves empty files."""
    return file.is_file() and file.stat().st_size > 0


def _reason(error: Exception) -> str:
    """One line; of USD's errors what was said, without where in whose source."""
    text = " ".join(str(error).split())
    found = re.search(r"Python runtime error: (.*?)'?$", text)
    return found[1] if found else text or type(error).__name__


def digest(spec: mujoco.MjSpec, xml: str) -> str:
    """What the converted files follow from: the cleaned MJCF, its meshes and the versions of the converters."""
    parts = [str(RECIPE).encode(), xml.encode()]
    parts += [
        f"{name} {importlib.metadata.version(name)}".encode() for name in ("mujoco", "mujoco-usd-converter")
    ]
    for mesh in spec.meshes:
        file = Path(spec.meshdir) / mesh.file
        parts.append(file.read_bytes() if mesh.file and file.is_file() else b"")
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def clean(robot: Robot) -> mujoco.MjSpec:
    """The robot's MJCF with what USD needs said and without what would be read wrongly.

    - Every body states its inertia: the converter leaves out the geoms that do not collide, and their mass with them.
    - The world's own geoms and lights go: a floor in there becomes part of the robot.
    - Looks and sites go: nothing there draws them, and the soles are placed by ourselves.
    - Bodies and joints are called by their numbers (`numbered`): USD does not take every name, things are put in the
      order of the alphabet there, and joints that share a body would turn about one another in that order.

    Raises:
        ConfigError: for equality constraints, tendons, named contact pairs and exclusions, bodies without a name,
            bodies whose joints do not share one anchor, joints with an actuatorfrcrange or a ref, and
            meshes without a file.
    """
    spec = mujoco.MjSpec.from_file(str(robot.mjcf))
    spec.modelname = "robot"  # that of a file and of a prim in there
    model = spec.copy().compile()
    _refuse(robot, spec, model)
    renamed: list[tuple[Any, str]] = []
    for body in spec.bodies:
        if body.name == spec.worldbody.name:
            continue
        number = model.body(body.name).id
        body.explicitinertial = True
        body.mass, body.inertia = model.body_mass[number], model.body_inertia[number]
        body.ipos, body.iquat = model.body_ipos[number], model.body_iquat[number]
        renamed.append((body, numbered("body", number)))
    for geom in list(spec.geoms):
        if geom.parent.name == spec.worldbody.name or not (geom.contype or geom.conaffinity):
            spec.delete(geom)
    for number, geom in enumerate(spec.geoms):  # never by the name of a body or joint beside it
        renamed.append((geom, f"geom{number:04d}"))
    hinges = [joint for joint in spec.joints if joint.type != mujoco.mjtJoint.mjJNT_FREE]
    renamed += [(joint, numbered("joint", model.joint(joint.name).id)) for joint in hinges]
    for number, (thing, _) in enumerate(renamed):  # out of the way: the robot may use such names itself
        thing.name = f"~{number}"
    for thing, name in renamed:
        thing.name = name
    for gone in [*spec.lights, *spec.cameras, *spec.sites, *spec.keys]:
        spec.delete(gone)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
        elif not mesh.file:
            raise ConfigError(
                f"{robot.mjcf}: mesh {mesh.name} has no file, and backend=isaaclab takes none from vertices; "
                "write it to an STL or OBJ file"
            )
    if spec.meshes:  # the file is written elsewhere
        spec.meshdir = str((robot.mjcf.parent / spec.meshdir).resolve())
    spec.compile()
    return spec


def numbered(kind: Literal["body", "joint"], number: int) -> str:
    """The name in USD of the body or joint with this number in MuJoCo."""
    return f"{kind}{number:04d}"


def number_of(path: str) -> int:
    """The number in MuJoCo of the body or joint that has this path, or name, in USD."""
    found = re.fullmatch(r"(?:body|joint)(\d{4,})", path.rpartition("/")[2])
    assert found, path
    return int(found[1])


def written(spec: mujoco.MjSpec) -> str:
    """A cleaned MJCF as text, without materials and textures, in the defaults neither."""
    root = ElementTree.fromstring(spec.to_xml())
    for geom in root.iter("geom"):
        geom.attrib.pop("material", None)
    for assets in root.iter("asset"):
        for kind in ("material", "texture"):
            for gone in assets.findall(kind):
                assets.remove(gone)
    return ElementTree.tostring(root, encoding="unicode")


def _refuse(robot: Robot, spec: mujoco.MjSpec, model: mujoco.MjModel) -> None:
    """One line about what would be lost."""
    parts: dict[str, Any] = {
        "equality constraints": spec.equalities,
        "tendons": spec.tendons,
        "contact pairs": spec.pairs,
        "contact exclusions": spec.excludes,
    }
    for what, found in parts.items():
        if len(found):
            raise ConfigError(
                f"{robot.mjcf}: has {what}, which backend=isaaclab does not take over; remove them"
            )
    if model.nbody == 2:
        raise ConfigError(
            f"{robot.mjcf}: is a single body, which Isaac Lab does not take for a robot; hang it on one without a joint"
        )
    for body in spec.bodies:
        if not body.name:
            raise ConfigError(f"{robot.mjcf}: backend=isaaclab needs a name for every body; one has none")
        anchors = {tuple(joint.pos) for joint in body.joints}
        if len(anchors) > 1:
            raise ConfigError(
                f"{robot.mjcf}: the joints of body {body.name} have different pos, which backend=isaaclab cannot hold; "
                "give each a body of its own"
            )
    for number in range(model.njnt):
        if model.jnt_type[number] == mujoco.mjtJoint.mjJNT_FREE:
            continue
        name = model.joint(number).name
        if model.jnt_actfrclimited[number]:
            raise ConfigError(
                f"{robot.mjcf}: joint {name} has an actuatorfrcrange, which backend=isaaclab does not take over; "
                "remove it and state the actuator's effort in robot.yaml"
            )
        if model.qpos0[model.jnt_qposadr[number]]:  # positions are counted from there in Isaac Lab
            raise ConfigError(
                f"{robot.mjcf}: joint {name} has a ref, which backend=isaaclab does not take over; remove it and turn "
                "or move the body instead"
            )


def convert(xml: Path, folder: Path) -> None:
    """Convert one MJCF file into a folder of USD, without a scene and in one layer, saying nothing."""
    import mujoco_usd_converter
    import usdex.core

    before, active = usdex.core.getDiagnosticsLevel(), usdex.core.isDiagnosticsDelegateActive()
    usdex.core.activateDiagnosticsDelegate()  # without it USD tells everything
    usdex.core.setDiagnosticsLevel(usdex.core.DiagnosticsLevel.eError)
    try:
        mujoco_usd_converter.Converter(layer_structure=False, scene=False).convert(str(xml), str(folder))
    finally:
        usdex.core.setDiagnosticsLevel(before)
        if not active:
            usdex.core.deactivateDiagnosticsDelegate()
