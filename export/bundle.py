"""Bundles on the disk: the manifest, the golden recording, the one-file runtime, and a folder written whole."""

from __future__ import annotations

import ast
import glob
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import robolearn
from robolearn import runtime
from robolearn.core.contract import Contract
from robolearn.errors import ConfigError, quote
from robolearn.export.profiles import PROFILES
from robolearn.export.record import Recording, golden
from robolearn.runtime.bundle import MANIFEST_SCHEMA, canonical, sha256_of
from robolearn.runtime.observe import UNITS

GRAPH, GOLDEN, MANIFEST, RUNTIME = "policy.onnx", "golden.npz", "manifest.json", "runtime.py"

PARTS = (
    "errors",
    "sessions",
    "observe",
    "bundle",
    "robot",
    "cuda",
    "measure",
    "engine",
    "main",
)
"""Modules of robolearn/runtime in the order in which the single file holds them."""


def contract_entry(contract: Contract) -> dict[str, Any]:
    """The contract as a manifest holds it: plain values, each observation with its unit and history."""
    plain: dict[str, Any] = json.loads(canonical(asdict(contract)))
    for item in plain["observations"]:
        item |= {"history": 1, "unit": UNITS.get(item["name"], "")}
    return plain


def manifest_entry(
    contract: dict[str, Any],
    model: onnx.ModelProto,
    precision: str,
    target: dict[str, Any],
    run: dict[str, Any],
) -> dict[str, Any]:
    """Everything of manifest.json but the hashes, which `write_parts` fills in."""

    def ports(values: Any) -> dict[str, list[int]]:
        return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}

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
        },
        "graph": {
            "file": GRAPH,
            "sha256": "",
            "opset": next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
            "precision": precision,
            "inputs": ports(model.graph.input),
            "outputs": ports(model.graph.output),
        },
        "golden": {"file": GOLDEN, "sha256": ""},
        "target": target,
        "run": run,
    }


def write_parts(folder: Path, manifest: dict[str, Any], model: onnx.ModelProto, recording: Recording) -> None:
    """Write policy.onnx, golden.npz, runtime.py and then manifest.json with their hashes."""
    onnx.save(model, str(folder / GRAPH))
    manifest["graph"]["sha256"] = sha256_of(folder / GRAPH)
    manifest["golden"]["sha256"] = ""
    arrays: dict[str, Any] = golden(recording)
    # The recording knows the manifest it was made with, so that a changed one is told from it.
    np.savez_compressed(folder / GOLDEN, manifest=np.array(canonical(manifest)), **arrays)
    manifest["golden"]["sha256"] = sha256_of(folder / GOLDEN)
    (folder / RUNTIME).write_text(single_file(), encoding="utf-8")
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")


HEAD = '''"""A trained policy on the robot's computer: python runtime.py check | build | measure.

Written by `robolearn export`. Needs Python 3.10 or later, numpy, and onnxruntime or tensorrt. In a control loop:

    from runtime import Bundle, Runtime, open_session

    bundle = Bundle.load("bundle")
    robot = Runtime(bundle, open_session(bundle, "onnxruntime"))  # the session is checked before you get it
    targets = robot.step({"quat": q, "gyro": w, "joint_pos": p, "joint_vel": v}, command)

or, where the policy was trained in somebody else's environment, robot.step({"given": observation}),
once in `robot.dt` seconds; see `Runtime` below for orders, gains and limits. Below:
PARTS.
"""
'''


def single_file() -> str:
    """The modules of robolearn/runtime as one file: imports first, without those of each other, the modules'
    docstrings as comments."""
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
    head = HEAD.replace("PARTS", ", ".join(PARTS)) + "\nfrom __future__ import annotations\n\n"
    return "\n\n".join([head + "\n".join(sorted(lines)) + "\n", *sections])


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill instead of `folder`, beside it; takes its place at the end, is removed on an error.

    Raises:
        ConfigError: `folder` is a file or holds something else than a bundle, or cannot be written.
    """
    require_replaceable(folder)
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
        if old.exists() and not folder.exists():  # stopped between the two moves, by whatever
            os.replace(old, folder)
        for path in (part, old):
            with suppress(OSError):
                shutil.rmtree(path)
        for parent in missing:  # made for this; what holds something now stays
            with suppress(OSError):
                parent.rmdir()


def _clear_leftovers(parent: Path, name: str) -> None:
    """Remove what an export that was killed has left half written."""
    for path in parent.glob(f".{glob.escape(name)}.*.part"):
        if _is_dead(path, name):
            shutil.rmtree(path, ignore_errors=True)
    for path in parent.glob(f".{glob.escape(name)}.*.old"):
        if _is_dead(path, name):
            if not (parent / name).exists():  # killed between the two moves
                os.replace(path, parent / name)
            shutil.rmtree(path, ignore_errors=True)


def _is_dead(path: Path, name: str) -> bool:
    number = path.stem.removeprefix(f".{name}.")
    return number.isdigit() and Path("/proc").is_dir() and not Path("/proc", number).exists()


OURS = {
    GRAPH,
    GOLDEN,
    MANIFEST,
    RUNTIME,
    "latency.json",
    "latency.png",
    "REPORT.md",
    "config.yaml",
    *PROFILES,
}
"""What a bundle may hold."""

BUILT = {"policy.engine", "policy.engine.json", "timing.cache", "__pycache__"}
"""What its runtime.py adds."""


def require_replaceable(folder: Path) -> None:
    """Refuse a place where a bundle would push something else aside.

    Raises:
        ConfigError: it is a file, or a folder of other things.
    """
    shown = quote(str(folder), 120)
    if folder.absolute() == Path.cwd():
        raise ConfigError(f"cannot write {shown}: it is the folder you are in; name another with --output")
    if not folder.name or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"cannot write {shown}: it is no plain folder; name another with --output")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    strangers = sorted({path.name for path in folder.iterdir()} - OURS - BUILT)
    try:
        made_by = str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["made_by"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        made_by = ""
    if strangers or not made_by.startswith("robolearn"):
        what = f"it holds {quote(strangers[0])}" if strangers else "it holds something else than a bundle"
        raise ConfigError(
            f"cannot write {shown}: {what}, which would be lost; name another folder with --output"
        )
