"""Bundles on the disk: the manifest, the golden recording, the one-file runtime, and a folder written whole."""

from __future__ import annotations

import ast
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
from robolearn.contract import Contract
from robolearn.errors import ConfigError, quote
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
    arrays: dict[str, Any] = golden(recording)
    np.savez_compressed(folder / GOLDEN, contract=np.array(canonical(manifest["contract"])), **arrays)
    (folder / RUNTIME).write_text(single_file(), encoding="utf-8")
    for part in ("graph", "golden"):
        manifest[part]["sha256"] = sha256_of(folder / manifest[part]["file"])
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def single_file() -> str:
    """The modules of robolearn/runtime as one file: their imports of each other left out, their docstrings as
    comments."""
    root = Path(runtime.__file__).parent
    head = '"""A trained policy on the robot\'s computer: python runtime.py check | build | measure.\n\n'
    head += "Written by `robolearn export`; needs numpy and onnxruntime, or numpy and tensorrt.\n"
    head += '"""\n\nfrom __future__ import annotations\n'
    out = [head]
    for part in PARTS:
        text = (root / f"{part}.py").read_text(encoding="utf-8")
        lines = text.splitlines()
        tree = ast.parse(text)
        doc = tree.body[0]
        assert isinstance(doc, ast.Expr)
        gone = [doc]
        for node in tree.body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name == "__future__" or name.startswith("robolearn") for name in names):
                gone.append(node)  # type: ignore[arg-type]
        dropped = {n for node in gone for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        kept = [line for number, line in enumerate(lines, 1) if number not in dropped]
        if part != "main":  # only the last one is a program
            assert '__name__ == "__main__"' not in text
        comment = "\n".join(f"# {line}".rstrip() for line in (ast.get_docstring(tree) or "").splitlines())
        out.append(f"# {'-' * 70} {part}\n{comment}\n\n" + "\n".join(kept).strip() + "\n")
    return "\n\n".join(out)


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
        part.mkdir(parents=True)
        yield part
        for path in filter(Path.is_file, part.rglob("*")):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if folder.exists():
            os.replace(folder, old)
        os.replace(part, folder)
    except OSError as error:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        raise ConfigError(f"cannot write {quote(str(folder), 120)}: {error.strerror or error}") from error
    finally:
        for path in (part, old):
            with suppress(OSError):
                shutil.rmtree(path)
        for parent in missing:  # made for this; what holds something now stays
            with suppress(OSError):
                parent.rmdir()


def require_replaceable(folder: Path) -> None:
    """Refuse a place where a bundle would push something else aside.

    Raises:
        ConfigError: it is a file, or a folder of other things.
    """
    if not folder.name or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(
            f"cannot write {quote(str(folder), 120)}: it is no plain folder; name another with --output"
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"cannot write {quote(str(folder), 120)}: it holds something else than a bundle; name another with --output"
        )
