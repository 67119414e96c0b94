"""Writing bundles: manifest, golden recording, single-file runtime, and a folder that appears only when complete."""

from __future__ import annotations

import ast
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import robolearn
from robolearn import runtime
from robolearn.core.contract import Contract
from robolearn.core.task_check import idle
from robolearn.envs.scene import Scene
from robolearn.errors import ConfigError, quote
from robolearn.export.controller import Exportable
from robolearn.export.golden import Golden
from robolearn.export.profiles import PROFILES
from robolearn.runtime.bundle import MANIFEST_SCHEMA, canonical
from robolearn.runtime.files import sha256_of
from robolearn.runtime.signature import SIGNATURE
from robolearn.simulation.sim2sim import FILE_NAME as SIM2SIM
from robolearn.tasks.mdp.observations import VOCABULARY, Observation
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.task import Task

GRAPH, CONTROLLER = "policy.onnx", "controller.onnx"
MODEL, PICTURE = "robot.xml", "robot.png"
GOLDEN, MANIFEST, RUNTIME = "golden.npz", "manifest.json", "runtime.py"
OF_ENVIRONMENT = "each column's as in the environment it was trained in"
"""Unit of the observation of an external environment."""

PARTS = (
    "errors",
    "files",
    "sessions",
    "contract",
    "bundle",
    "signature",
    "robot",
    "cuda",
    "measure",
    "picture",
    "engine",
    "main",
)
"""Modules of robolearn/runtime, in their order in runtime.py."""


def contract_entry(contract: Contract, items: Iterable[Observation] = ()) -> dict[str, Any]:
    """The contract as in the manifest: plain values, each observation with its unit and history.

    Args:
        items: the task's policy observations; none of an external environment.
    """
    plain: dict[str, Any] = json.loads(canonical(asdict(contract)))
    known = {item.name: item for item in items}
    for entry in plain["observations"]:
        item = known.get(entry["name"])
        entry |= {"history": 1, "unit": OF_ENVIRONMENT}
        if item is not None:
            # A task may give its own observation the name of one of the vocabulary.
            named = VOCABULARY.get(item.name)
            standard = named is not None and item == replace(named, history=item.history)
            entry |= {"history": item.history, "unit": item.unit, "standard": standard}
    return plain


def conditions(task: Task, scene: Scene) -> dict[str, Any]:
    """What a policy met in training between the robot and its observations, and between its actions and the motors. It
    is of the world: the controller has no part of it. `scene` is the task's.

    `noise`: half-width of the uniform noise on an item; `sensing`: see `Sensing`; `randomize`: ranges drawn at a reset;
    `packet_loss`: probability that an action does not arrive; `terrain`: see `Terrain.stated`, none on flat ground.
    """
    task = task.filled()
    terrain, unmet = scene.terrain, idle(task, scene)
    drawn = {name: Randomized.of(each).plain() for name, each in task.randomize.items() if name not in unmet}
    ground = {"terrain": terrain.stated()} if terrain is not None and not terrain.flat else {}
    plain: dict[str, Any] = json.loads(
        canonical(
            {
                **ground,
                "noise": task.noise,
                "sensing": {name: each.stated() for name, each in task.sensing.items()},
                "randomize": drawn,
                "packet_loss": task.packet_loss,
            }
        )
    )
    return plain


def manifest_entry(
    contract: dict[str, Any],
    model: onnx.ModelProto,
    controller: Exportable,
    controller_model: onnx.ModelProto,
    precision: str,
    target: dict[str, Any],
    run: dict[str, Any],
) -> dict[str, Any]:
    """Content of manifest.json, without the hashes that `write_parts` and `seal` fill in."""

    def graph(model: onnx.ModelProto, file: str) -> dict[str, Any]:
        return {
            "file": file,
            "sha256": "",
            "opset": next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
            "precision": precision,
            "inputs": ports(model.graph.input),
            "outputs": ports(model.graph.output),
        }

    return {
        "schema": MANIFEST_SCHEMA,
        "made_by": f"robolearn {robolearn.__version__}",
        "contract": contract,
        "units": {
            "joints": "rad (m for a slide)",
            "gains": "kp Nm/rad, kd Nm s/rad (N/m, N s/m), effort Nm (N)",
            "targets": "rad (m) for kind position, Nm (N) for kind force",
            "control_dt": "s",
            "delays": "control steps, as trained",
            "conditions": "as trained: noise and bias in the unit of the observation; slow: standard deviation, s; "
            "delay: control steps; dropout, packet_loss: probability in a control step; terrain: m, slopes in degrees, "
            "easiest and hardest row; share of the columns",
            "history": "samples of an observation, one a control step, the oldest first",
            "numbers": "float32",
        },
        "sensors": sensor_entries(controller),
        "state": state_entries(controller),
        "targets": {"depend_on": list(controller.targets_of), "affine": controller.affine},
        "controller": graph(controller_model, CONTROLLER),
        "policy": graph(model, GRAPH),
        "golden": {"file": GOLDEN, "sha256": ""},
        "target": target,
        "run": run,
        "files": {},
    }


def ports(values: Iterable[onnx.ValueInfoProto]) -> dict[str, list[int]]:
    """Shape of each input or output by name."""
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def sensor_entries(controller: Exportable) -> list[dict[str, Any]]:
    """The manifest's table of sensors, in the order of the controller's inputs."""
    example = controller.example
    return [
        {
            "name": name,
            "shape": list(example[name].shape),
            "unit": sensor.unit,
            "frame": sensor.frame,
            "unit_length": sensor.unit_length,
        }
        for name, sensor in controller.sensors.items()
    ]


def state_entries(controller: Exportable) -> list[dict[str, Any]]:
    """The manifest's table of state: what the controller gives as NAME_out is its NAME_in in the next step."""
    return [
        {"name": name, "shape": list(value.shape), "reset": value.tolist()}
        for name, value in controller.initial.items()
    ]


def write_parts(
    folder: Path,
    manifest: dict[str, Any],
    model: onnx.ModelProto,
    controller_model: onnx.ModelProto,
    golden: Golden,
) -> None:
    """Write controller.onnx, policy.onnx, runtime.py, and golden.npz and manifest.json with the hashes so far."""
    for part, graph in (("policy", model), ("controller", controller_model)):
        path = folder / manifest[part]["file"]
        onnx.save(graph, str(path))
        manifest[part]["sha256"] = sha256_of(path)
    (folder / RUNTIME).write_text(single_file(), encoding="utf-8")
    manifest["golden"] |= golden.entry()
    write_manifest(folder, manifest, golden.arrays)


def write_manifest(folder: Path, manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write golden.npz of `arrays`, and manifest.json."""
    manifest["golden"]["sha256"] = ""
    # The recording holds a copy of the manifest, so that an edited manifest is detected.
    np.savez_compressed(folder / GOLDEN, manifest=np.array(canonical(manifest)), **arrays)  # type: ignore[arg-type]
    manifest["golden"]["sha256"] = sha256_of(folder / GOLDEN)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def seal(folder: Path, manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Put the hash of every other file into the manifest, and write it and the recording again."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    manifest["files"] = {n: sha256_of(folder / n) for n in names if n not in (MANIFEST, GOLDEN, *BUILT_NAMES)}
    write_manifest(folder, manifest, arrays)


HEAD = '''"""A trained policy on the robot's computer: python runtime.py check | build | measure.

Written by `robolearn export`. Needs Python 3.10 or later, numpy, and onnxruntime or tensorrt. In a control loop:

    from runtime import Bundle, Runtime, open_session

    bundle = Bundle.load("bundle")
    robot = Runtime(bundle, open_session(bundle, "onnxruntime"))  # runs the golden check
    targets = robot.step({"quat": q, "gyro": w, "joint_pos": p, "joint_vel": v}, command)

For a policy of an external environment: robot.step({"given": observation}). Call `step` every `robot.dt` seconds; class
`Runtime` documents joint orders, gains and limits. Sections of this file:
PARTS.
"""
'''


ALONE = """import sys

if __name__ == "__main__":  # a module beside this file must not take the place of an installed one
    sys.path.pop(0)

"""


def single_file() -> str:
    """Source of runtime.py: the modules of robolearn/runtime in one file, imports first, module docstrings as
    comments."""
    root = Path(runtime.__file__).parent
    imports: dict[str, set[str]] = {}
    sections = []
    for part in PARTS:
        text = (root / f"{part}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        gone: list[ast.stmt] = [tree.body[0]]
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                gone.append(node)
                if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("robolearn")):
                    whole = isinstance(node, ast.Import)
                    for alias in node.names:
                        key = ast.unparse(alias) if whole else str(node.module)  # type: ignore[union-attr]
                        imports.setdefault(key, set()).update([] if whole else [alias.name])
        dropped = {n for node in gone for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in dropped]
        comment = "\n".join(f"# {line}".rstrip() for line in (ast.get_docstring(tree) or "").splitlines())
        sections.append(f"# {'-' * 70} {part}\n{comment}\n\n" + "\n".join(kept).strip() + "\n")
    del imports["__future__"]
    lines = [
        f"from {key} import {', '.join(sorted(v))}" if v else f"import {key}" for key, v in imports.items()
    ]
    head = HEAD.replace("PARTS", ", ".join(PARTS)) + "\nfrom __future__ import annotations\n\n" + ALONE
    return "\n\n".join([head + "\n".join(sorted(lines)) + "\n", *sections])


@contextmanager
def new_folder(folder: Path, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yields a temporary folder beside `folder`, which replaces `folder` at the end; removed on an error.

    Raises:
        ConfigError: `folder` is a file, holds anything else than a bundle, or cannot be written; or `check`, in place
            of `require_replaceable`, refuses it.
    """
    (check or require_replaceable)(folder)
    part = folder.absolute().with_name(f".{folder.name}.{os.getpid()}.part")
    old = part.with_suffix(".old")
    missing = [parent for parent in part.parents if not parent.exists()]
    try:
        _clear_leftovers(part.parent, folder.name)
        part.mkdir(parents=True)
        yield part
        for path in filter(Path.is_file, part.rglob("*")):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if folder.exists():
            os.replace(folder, old)
        os.replace(part, folder)
    except OSError as error:
        raise ConfigError(f"cannot write {quote(str(folder), 120)}: {error.strerror or error}") from error
    finally:
        if old.exists() and not folder.exists():  # interrupted between the two renames
            os.replace(old, folder)
        for path in (part, old):
            with suppress(OSError):
                shutil.rmtree(path)
        for parent in missing:  # created above; rmdir fails where a folder is not empty
            with suppress(OSError):
                parent.rmdir()


def _clear_leftovers(parent: Path, name: str) -> None:
    """Remove the temporary folders of killed exports; put back a bundle that one of them had moved away."""
    for path in parent.glob(f".{glob.escape(name)}.*.part"):
        if _process_ended(path, name):
            shutil.rmtree(path, ignore_errors=True)
    for path in parent.glob(f".{glob.escape(name)}.*.old"):
        if _process_ended(path, name):
            if not (parent / name).exists():  # killed between the two renames
                os.replace(path, parent / name)
            shutil.rmtree(path, ignore_errors=True)


def _process_ended(path: Path, name: str) -> bool:
    number = path.stem.removeprefix(f".{name}.")
    return number.isdigit() and Path("/proc").is_dir() and not Path("/proc", number).exists()


BUNDLE_NAMES = {
    GRAPH,
    CONTROLLER,
    MODEL,
    PICTURE,
    GOLDEN,
    MANIFEST,
    RUNTIME,
    "latency.json",
    "latency.png",
    SIM2SIM,
    "REPORT.md",
    "config.yaml",
    SIGNATURE,
    *PROFILES,
}
"""Names that `export` writes into a bundle."""

BUILT_NAMES = {"controller.engine", "controller.engine.json", "timing.cache", "__pycache__"}
BUILT_NAMES |= {"policy.engine", "policy.engine.json"}  # of bundles of schema 1
"""Names that runtime.py adds on the robot's computer."""


def is_free(folder: Path) -> bool:
    """Whether a place for results is free: there is no folder, or an empty one.

    Raises:
        ConfigError: it is a file, a link, or the working directory.
    """
    shown = quote(str(folder), 120)
    if folder.absolute() == Path.cwd():
        raise ConfigError(
            f"cannot write {shown}: it is the current directory; name another folder with --output"
        )
    if not folder.name or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"cannot write {shown}: it is not a plain folder; name another with --output")
    return not folder.is_dir() or not any(folder.iterdir())


def require_replaceable(folder: Path) -> None:
    """Refuse a place for a bundle that holds anything else than a bundle.

    Raises:
        ConfigError: it is a file, a link, the working directory, or a folder with other files.
    """
    shown = quote(str(folder), 120)
    if is_free(folder):
        return
    others = sorted({path.name for path in folder.iterdir()} - BUNDLE_NAMES - BUILT_NAMES)
    try:
        made_by = str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["made_by"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        made_by = ""
    if others or not made_by.startswith("robolearn"):
        what = f"it holds {quote(others[0])}" if others else "it is not a bundle"
        raise ConfigError(
            f"cannot write {shown}: {what}, which would be lost; name another folder with --output"
        )
