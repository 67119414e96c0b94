"""Bundles on the disk: loaded, and refused unless all parts come from the same export."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.contract import Fault, checked_contract, checked_ports, finite, shapes, text, whole
from robolearn.runtime.errors import BAD_INPUT, Refused
from robolearn.runtime.files import LARGEST_MANIFEST, MALFORMED, plain_name, read, recording, sha256_of
from robolearn.runtime.sessions import Session

MANIFEST_SCHEMA = 2
"""Version of manifest.json's layout."""


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


class Bundle:
    """A checked bundle: `folder`, `manifest`, `contract`, and `golden`, arrays by name with one row per control step:
    recorded sensor readings, and the observations, actions and joint targets of the trained policy."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], contract: dict[str, Any], golden: dict[str, np.ndarray]
    ) -> None:
        self.folder, self.manifest, self.contract, self.golden = folder, manifest, contract, golden
        self.inputs, self.outputs = checked_ports(manifest, contract)
        """Shapes of the controller's inputs and outputs by name, with a batch of 1."""

    @classmethod
    def load(cls, folder: Path | str) -> Bundle:
        """Read a bundle.

        Raises:
            Refused: BAD_INPUT; it is incomplete, damaged, of another version, or its manifest was edited.
        """
        folder = Path(folder)
        try:
            manifest, golden = unedited(folder)
            _whole(folder, manifest, "controller")
            contract = checked_contract(manifest["contract"], "manifest.json")
            _check_values(manifest, contract)
            bundle = cls(folder, manifest, contract, golden)
            _require_rows(golden, bundle)
            return bundle
        except Fault as fault:
            raise Refused(f"manifest.json: {fault}", BAD_INPUT) from None
        except MALFORMED as error:
            raise Refused(
                "manifest.json or golden.npz is incomplete or malformed "
                f"({type(error).__name__}: {error!s:.200})",
                BAD_INPUT,
            ) from None

    @property
    def graph(self) -> Path:
        """Path of the controller's ONNX file."""
        return self.folder / str(self.manifest["controller"]["file"])

    @property
    def engine(self) -> Path:
        """Path of the TensorRT engine, which exists once it is built."""
        return self.graph.with_suffix(".engine")

    @property
    def rate(self) -> float:
        """Control rate [Hz]."""
        return 1.0 / float(self.contract["control_dt"])

    def altered(self) -> dict[str, str]:
        """The files that differ from the export, and how: changed, missing, or not a plain file."""
        found = {}
        for name, digest in self.manifest["files"].items():
            try:
                if sha256_of(self.folder / plain_name(name)) != digest:
                    found[name] = "was changed since the export"
            except Refused as error:
                found[name] = str(error).removeprefix(name).strip()
        return found

    def require_fit(self, session: Session) -> None:
        """Compare a loaded controller with the manifest.

        Raises:
            Refused: BAD_INPUT; its inputs, its outputs or the contract it was exported with differ from the
                manifest's.
        """
        for kind, mine, graph in (
            ("inputs", self.inputs, session.inputs),
            ("outputs", self.outputs, session.outputs),
        ):
            if mine != {name: tuple(shape) for name, shape in graph.items()}:
                raise Refused(
                    f"the controller's {kind} are {shapes(graph)}; the manifest requires {shapes(mine)}",
                    BAD_INPUT,
                )
        notes = getattr(session, "metadata", None)
        if notes is None:  # an engine has no metadata; its sidecar holds the hash of the ONNX file
            return
        try:
            other = difference(self.contract, json.loads(notes["robolearn.contract"]))
        except MALFORMED:
            raise Refused(
                "the controller's metadata has no valid robolearn.contract; export it again", BAD_INPUT
            ) from None
        if other:
            raise Refused(f"the controller was exported with another contract: {other}", BAD_INPUT)


def unedited(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The manifest, compared with the copy in the recording before any of its values is used, and the recording.

    Raises:
        Refused: BAD_INPUT; one cannot be read, or the manifest was edited.
    """
    manifest = read_manifest(folder)
    try:
        golden = recording(_whole(folder, manifest, "golden"))
        exported = json.loads(str(golden.pop("manifest")))
        mine = manifest | {"golden": {**manifest["golden"], "sha256": ""}}
        changed = difference(mine, exported, "manifest")
    except MALFORMED as error:
        why = f"{type(error).__name__}: {error!s:.200}"
        raise Refused(f"manifest.json or golden.npz is incomplete or malformed ({why})", BAD_INPUT) from None
    if changed:
        raise Refused(f"manifest.json was changed since the export: {changed:.300}", BAD_INPUT)
    return manifest, golden


def read_manifest(folder: Path) -> dict[str, Any]:
    """The content of manifest.json.

    Raises:
        Refused: BAD_INPUT; there is none, it cannot be read, or is of another version.
    """
    path = folder / "manifest.json"
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        why = "it has no manifest.json; robolearn export writes one"
        if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENOTDIR):
            why = str(getattr(error, "strerror", None) or error)
        raise Refused(f"{str(folder)[:200]} is not a bundle: {why}", BAD_INPUT) from None
    try:
        manifest = json.loads(read(path, LARGEST_MANIFEST).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"manifest.json cannot be read: {error!s:.120}", BAD_INPUT) from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != MANIFEST_SCHEMA:
        raise Refused(
            f"manifest.json has schema {schema!r:.40}; this runtime reads {MANIFEST_SCHEMA}; export again, or use the "
            "runtime.py in the bundle",
            BAD_INPUT,
        )
    return dict(manifest)


def _whole(folder: Path, manifest: dict[str, Any], part: str) -> Path:
    """Path of a part, `controller` or `golden`; refused where its hash is not the manifest's."""
    name = plain_name(manifest[part]["file"])
    if "/" in name:
        raise Refused(f"manifest.json names {name!r}, which is no file of a bundle", BAD_INPUT)
    path = folder / name
    if sha256_of(path) != manifest[part]["sha256"]:
        raise Refused(
            f"{name} is damaged or from another export: its SHA-256 is not the manifest's; copy it again",
            BAD_INPUT,
        )
    return path


def _require_rows(golden: dict[str, np.ndarray], bundle: Bundle) -> None:
    """Refuse a recording with a missing column, a number that is not finite, or too few rows."""
    rows = len(golden["reset"])
    wanted = {name: (rows, *shape[1:]) for name, shape in bundle.inputs.items() if not name.endswith("_in")}
    wanted |= {name: (rows, *bundle.outputs[name][1:]) for name in ("observations", "actions", "targets")}
    wanted |= {"reset": (rows,), "command": (rows, len(bundle.contract["command"]))}
    episodes = int(np.count_nonzero(golden["reset"]))
    for name in golden:
        if name.startswith("start."):
            wanted[name] = (episodes, *bundle.inputs[f"{name.removeprefix('start.')}_in"][1:])
    for name, shape in wanted.items():
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


def _check_values(manifest: dict[str, Any], contract: dict[str, Any]) -> None:
    """Check the values of a manifest that are used later.

    Raises:
        Fault: one of them makes no sense.
    """
    target, budget = manifest["target"], manifest["target"]["budget"]
    if not all(0 < finite(budget[key], f"budget {key}") <= 1 for key in ("p50", "p99", "max", "jitter")):
        raise Fault("a share of the budget is not within 0..1")
    if bool(target["any_machine"]) != (target["name"] == "host"):
        raise Fault("any_machine is true for the export target host, and for no other")
    if not all(isinstance(word, str) and word for word in target["detect"]):
        raise Fault("detect must be a list of words")
    text(target["title"], "title of the export target")
    if manifest["controller"]["precision"] not in ("fp32", "fp16", "bf16"):
        raise Fault(f"unknown precision {manifest['controller']['precision']!r:.40}")
    ranges = manifest["command_ranges"]
    for name, pair in ranges.items():
        low, high = (finite(end, f"range of command {name}") for end in pair)
        if name not in contract["command"] or not low <= high:
            raise Fault(f"the range of command {name!r:.40} is {low:g} to {high:g}; it must be low to high")
    for name, digest in manifest["files"].items():
        plain_name(name)
        text(digest, f"hash of {name}")
    for part in ("inputs", "outputs"):
        for name, shape in manifest["controller"][part].items():
            for size in shape:
                whole(size, f"shape of {name}")
