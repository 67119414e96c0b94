"""Bundles on the disk: loaded, and refused unless all parts come from the same export."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.errors import BAD_INPUT, Refused
from robolearn.runtime.observe import checked_contract, sensors_of
from robolearn.runtime.sessions import Session

MANIFEST_SCHEMA = 1
"""Version of manifest.json's layout."""

STATES = ("h", "c")
"""Names of recurrent states: the ONNX graph's inputs are h_in and c_in, its outputs h_out and c_out."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def canonical(contract: Any) -> str:
    """A contract as canonical JSON, for comparison: keys sorted, full precision."""
    return json.dumps(contract, sort_keys=True, separators=(",", ":"))


def difference(mine: Any, other: Any, where: str = "contract") -> str:
    """The first difference of two contracts, such as `contract.actions[3].kp: 100.0 and 90.0`; empty where equal."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in [*mine, *(key for key in other if key not in mine)]:
            if key not in mine or key not in other:
                return f"{where}.{key} is in only one of the two"
            if found := difference(mine[key], other[key], f"{where}.{key}"):
                return found
        return ""
    if isinstance(mine, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(mine) != len(other):
            return f"{where} has {len(mine)} and {len(other)} entries"
        each = (difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(mine, other, strict=True)))
        return next((text for text in each if text), "")
    return "" if mine == other else f"{where}: {mine!r} and {other!r}"


GOLDEN_ROWS = 200
"""Least number of control steps in a golden recording."""

MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    ZeroDivisionError,
    RecursionError,
)
"""Exceptions that reading a malformed file can raise."""


class Bundle:
    """A checked bundle: `folder`, `manifest`, `contract`, and `golden`, arrays by name with one row per control step:
    recorded sensor readings, and the observations, actions and joint targets of the trained policy."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], contract: dict[str, Any], golden: dict[str, np.ndarray]
    ) -> None:
        self.folder, self.manifest, self.contract, self.golden = folder, manifest, contract, golden

    @classmethod
    def load(cls, folder: Path | str) -> Bundle:
        """Read a bundle.

        Raises:
            Refused: BAD_INPUT; it is incomplete, damaged, of another version, or its manifest was edited.
        """
        folder = Path(folder)
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            why = "it has no manifest.json; robolearn export writes one"
            raise Refused(f"{folder} is not a bundle: {why}", BAD_INPUT) from None
        except (OSError, ValueError, RecursionError) as error:
            raise Refused(f"manifest.json cannot be read: {error}", BAD_INPUT) from None
        schema = manifest.get("schema") if isinstance(manifest, dict) else None
        if schema != MANIFEST_SCHEMA:
            raise Refused(
                f"manifest.json has schema {schema!r}; this runtime reads {MANIFEST_SCHEMA}; export again",
                BAD_INPUT,
            )
        try:
            golden = _golden(_whole(folder, manifest, "golden"))
            exported = json.loads(str(golden.pop("manifest")))
            # The whole manifest is compared before any of its values is used.
            mine = manifest | {"golden": {**manifest["golden"], "sha256": ""}}
            if changed := difference(mine, exported, "manifest"):
                raise Refused(f"manifest.json was changed since the export: {changed}", BAD_INPUT)
            _whole(folder, manifest, "graph")
            contract = checked_contract(manifest["contract"], "manifest.json")
            _require_rows(golden, contract)
            _require_target(manifest)
        except MALFORMED as error:
            raise Refused(
                f"manifest.json or golden.npz is incomplete or malformed ({type(error).__name__}: {error})",
                BAD_INPUT,
            ) from None
        return cls(folder, manifest, contract, golden)

    @property
    def graph(self) -> Path:
        """Path of the ONNX file."""
        return self.folder / str(self.manifest["graph"]["file"])

    @property
    def engine(self) -> Path:
        """Path of the TensorRT engine, which exists once it is built."""
        return self.graph.with_suffix(".engine")

    @property
    def rate(self) -> float:
        """Control rate [Hz]."""
        return 1.0 / float(self.contract["control_dt"])

    def require_fit(self, session: Session) -> None:
        """Compare a loaded network with the manifest.

        Raises:
            Refused: BAD_INPUT; its inputs, its outputs or the contract it was exported with differ from the
                manifest's.
        """
        last = self.contract["observations"][-1]
        wanted: dict[str, tuple[int, ...]] = {"obs": (1, last["column"] + last["width"])}
        given: dict[str, tuple[int, ...]] = {"actions": (1, len(self.contract["actions"]))}
        states = [name for name in STATES if f"{name}_in" in self.manifest["graph"]["inputs"]]
        for name in states:
            wanted[f"{name}_in"] = given[f"{name}_out"] = tuple(
                self.manifest["graph"]["inputs"][f"{name}_in"]
            )
        for kind, mine, graph in (("inputs", wanted, session.inputs), ("outputs", given, session.outputs)):
            if mine != {name: tuple(shape) for name, shape in graph.items()}:
                raise Refused(
                    f"the network's {kind} are {_shapes(graph)}; the manifest requires {_shapes(mine)}",
                    BAD_INPUT,
                )
        notes = getattr(session, "metadata", None)
        if notes is None:  # an engine has no metadata; its sidecar holds the hash of the ONNX file
            return
        try:
            other = difference(self.contract, json.loads(notes["robolearn.contract"]))
        except MALFORMED:
            raise Refused(
                "the network's metadata has no valid robolearn.contract; export it again", BAD_INPUT
            ) from None
        if other:
            raise Refused(f"the network was exported with another contract: {other}", BAD_INPUT)


def _shapes(ports: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in ports.items()) or "none"


def _whole(folder: Path, manifest: dict[str, Any], part: str) -> Path:
    """Path of a part, `graph` or `golden`; refused where its hash is not the manifest's."""
    name = str(manifest[part]["file"])
    if Path(name).name != name:
        raise Refused(f"manifest.json names {name!r}, a path outside the bundle", BAD_INPUT)
    path = folder / name
    if not path.is_file():
        raise Refused(f"{name} is missing beside manifest.json; copy the whole bundle", BAD_INPUT)
    if sha256_of(path) != manifest[part]["sha256"]:
        raise Refused(
            f"{name} is damaged or from another export: its SHA-256 is not the manifest's; copy it again",
            BAD_INPUT,
        )
    return path


def _golden(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, *MALFORMED) as error:
        raise Refused(f"{path.name} cannot be read: {type(error).__name__}: {error}", BAD_INPUT) from None


def _require_rows(golden: dict[str, np.ndarray], contract: dict[str, Any]) -> None:
    """Refuse a recording with a missing column, a number that is not finite, or too few rows."""
    actions = len(contract["actions"])
    width = contract["observations"][-1]["column"] + contract["observations"][-1]["width"]
    columns = sensors_of(contract) | {"command": len(contract["command"])}
    columns |= {"observations": width, "actions": actions, "targets": actions}
    rows = len(golden["reset"])
    shapes = {name: (rows, size) for name, size in columns.items()} | {"reset": (rows,)}
    for name, shape in shapes.items():
        if golden[name].shape != shape or not np.isfinite(golden[name].astype(np.float64)).all():
            raise Refused(
                f"golden.npz: {name} must be finite and of shape {shape}; its shape is {golden[name].shape}",
                BAD_INPUT,
            )
    if rows < GOLDEN_ROWS or not golden["reset"][0]:
        raise Refused(
            f"golden.npz holds {rows} control steps; it must begin with a reset and hold at least {GOLDEN_ROWS}",
            BAD_INPUT,
        )


def _require_target(manifest: dict[str, Any]) -> None:
    target, graph = manifest["target"], manifest["graph"]
    budget = target["budget"]
    if not all(0 < float(budget[key]) <= 1 for key in ("p50", "p99", "max", "jitter")):
        raise ValueError("a share of the budget is not within 0..1")
    if bool(target["any_machine"]) != (target["name"] == "host"):
        raise ValueError("any_machine is true for the export target host, and for no other")
    if not all(isinstance(word, str) and word for word in target["detect"]):
        raise ValueError("detect must be a list of words")
    str(target["title"])
    for shape in (*graph["inputs"].values(), *graph["outputs"].values()):
        tuple(shape)
    if graph["precision"] not in ("fp32", "fp16", "bf16"):
        raise ValueError(f"unknown precision {graph['precision']!r}")
