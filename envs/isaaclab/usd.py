"""A robot's MJCF as the USD file that Isaac Lab loads, converted once and kept."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import mujoco

from robolearn.envs.mjcf import FLOOR_FRICTION
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from robolearn.files import replacing

RECIPE = 1
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

    The folder's name is a hash of what goes into it, so that a changed robot, or another converter, has another one. It
    is built beside its place and moved there whole: of several processes one wins, and none sees half a file.

    Raises:
        ConfigError: the MJCF holds something that does not survive the way through USD.
    """
    spec = clean(robot)
    xml = written(spec)
    folder = cache_folder() / f"{robot.name}-{digest(spec, xml)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            building.chmod(0o755)
            (building / "robot.xml").write_text(xml, encoding="utf-8")
            convert(building / "robot.xml", building / "robot")
            try:
                os.replace(building, folder)
            except OSError:
                if not folder.is_dir():  # not another process that was quicker
                    raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return next((folder / "robot").glob("*.usd*"))


def ground_usd() -> Path:
    """The floor's USD file."""
    file = cache_folder() / f"ground-{hashlib.sha256(GROUND.encode()).hexdigest()[:16]}.usda"
    if not file.is_file():
        with replacing(file) as building:
            building.write_text(GROUND, encoding="utf-8")
    return file


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
    - Bodies and joints get a number before their names (`numbered`): they are put in the order of the alphabet there,
      and joints that share a body would turn about one another in that order.

    Raises:
        ConfigError: for equality constraints, tendons, named contact pairs and exclusions, bodies without a name, and
            bodies whose joints do not share one anchor.
    """
    spec = mujoco.MjSpec.from_file(str(robot.mjcf))
    model = spec.copy().compile()
    _refuse(robot, spec, model)
    for body in spec.bodies:
        if body.name == spec.worldbody.name:
            continue
        number = model.body(body.name).id
        body.explicitinertial = True
        body.mass, body.inertia = model.body_mass[number], model.body_inertia[number]
        body.ipos, body.iquat = model.body_ipos[number], model.body_iquat[number]
        body.name = numbered(number, body.name)
    for geom in list(spec.geoms):
        if geom.parent.name == spec.worldbody.name or not (geom.contype or geom.conaffinity):
            spec.delete(geom)
    for joint in spec.joints:
        if joint.type != mujoco.mjtJoint.mjJNT_FREE:
            joint.name = numbered(model.joint(joint.name).id, joint.name)
    for gone in [*spec.lights, *spec.cameras, *spec.sites, *spec.keys]:
        spec.delete(gone)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
    if spec.meshes:  # the file is written elsewhere
        spec.meshdir = str((robot.mjcf.parent / spec.meshdir).resolve())
    spec.compile()
    return spec


def numbered(number: int, name: str) -> str:
    """The name in USD of a body or joint with this number in MuJoCo."""
    return f"n{number:04d}_{name}"


def number_of(path: str) -> int:
    """The number in MuJoCo of what has this path, or name, in USD."""
    found = re.fullmatch(r"n(\d{4})_.*", path.rpartition("/")[2])
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
    for body in spec.bodies:
        if not body.name:
            raise ConfigError(f"{robot.mjcf}: backend=isaaclab needs a name for every body; one has none")
        anchors = {tuple(joint.pos) for joint in body.joints}
        if len(anchors) > 1:
            raise ConfigError(
                f"{robot.mjcf}: the joints of body {body.name} have different pos, which backend=isaaclab cannot hold; "
                "give each a body of its own"
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
