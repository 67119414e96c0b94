"""A bundle on the disk: read, and refused where its parts are not those that were exported together."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.errors import BAD_INPUT, Refused
from robolearn.runtime.observe import checked_contract
from robolearn.runtime.sessions import Session

MANIFEST_SCHEMA = 1
"""Version of manifest.json's layout."""

STATES = ("h", "c")
"""Names of recurrent state: the graph's inputs are h_in, c_in, its outputs h_out, c_out."""


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def canonical(contract: Any) -> str:
    """The one way a contract is written for comparing it: JSON, keys sorted, full precision."""
    return json.dumps(contract, sort_keys=True, separators=(",", ":"))


def difference(mine: Any, other: Any, where: str = "contract") -> str:
    """Where two contracts differ first, such as `contract.actions[3].kp: 100.0 and 90.0`; empty where nowhere."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in [*mine, *(key for key in other if key not in mine)]:
            if key not in mine or key not in other:
                return f"{where}.{key} is in one of the two only"
            if found := difference(mine[key], other[key], f"{where}.{key}"):
                return found
        return ""
    if isinstance(mine, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(mine) != len(other):
            return f"{where} has {len(mine)} and {len(other)} entries"
        each = (difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(mine, other, strict=True)))
        return next((text for text in each if text), "")
    return "" if mine == other else f"{where}: {mine!r} and {other!r}"


@dataclass
class Bundle:
    """A bundle whose parts fit together."""

    folder: Path
    manifest: dict[str, Any]
    contract: dict[str, Any]
    golden: dict[str, np.ndarray]
    """Recorded sensor readings and what the trained policy made of them, a row a control step."""

    @classmethod
    def load(cls, folder: Path) -> Bundle:
        """Read a bundle.

        Raises:
            Refused: it is incomplete, damaged, of another version, or its manifest was changed since.
        """
        manifest = _manifest(folder / "manifest.json")
        for part in ("graph", "golden"):
            path = folder / manifest[part]["file"]
            if not path.is_file():
                raise Refused(
                    f"{path.name} is missing beside manifest.json; copy the whole bundle", BAD_INPUT
                )
            if sha256_of(path) != manifest[part]["sha256"]:
                raise Refused(
                    f"{path.name} is damaged or of another export: its SHA-256 is not the manifest's; copy it again",
                    BAD_INPUT,
                )
        contract = checked_contract(manifest["contract"], "manifest.json")
        try:
            with np.load(folder / manifest["golden"]["file"], allow_pickle=False) as file:
                golden = {name: file[name] for name in file.files}
            exported = json.loads(str(golden.pop("contract")))
        except (OSError, ValueError, KeyError) as error:
            raise Refused(f"golden.npz cannot be read: {error}", BAD_INPUT) from None
        if changed := difference(contract, exported):
            raise Refused(f"manifest.json was changed since the export: {changed}", BAD_INPUT)
        return cls(folder, manifest, contract, golden)

    @property
    def graph(self) -> Path:
        """The network."""
        return self.folder / str(self.manifest["graph"]["file"])

    @property
    def engine(self) -> Path:
        """Where the network lies as a TensorRT engine, once it is built."""
        return self.graph.with_suffix(".engine")

    @property
    def rate(self) -> float:
        """Control steps a second [Hz]."""
        return 1.0 / float(self.contract["control_dt"])

    def require_fit(self, session: Session) -> None:
        """Compare a loaded network with the manifest.

        Raises:
            Refused: its inputs, outputs or the contract it was exported with are not the manifest's.
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
                    f"the network's {kind} are {_shapes(graph)} and the manifest's {_shapes(mine)}", BAD_INPUT
                )
        inside = getattr(session, "metadata", {}).get("robolearn.contract")
        if inside is not None and (other := difference(self.contract, json.loads(inside))):
            raise Refused(f"the network was exported with another contract: {other}", BAD_INPUT)


def _shapes(ports: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in ports.items()) or "none"


def _manifest(path: Path) -> dict[str, Any]:
    """manifest.json, with the parts this runtime reads."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"{path.parent} is no bundle: it has no manifest.json", BAD_INPUT) from None
    except (OSError, ValueError) as error:
        raise Refused(f"manifest.json cannot be read: {error}", BAD_INPUT) from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != MANIFEST_SCHEMA:
        raise Refused(f"manifest.json has schema {schema}, this runtime reads {MANIFEST_SCHEMA}", BAD_INPUT)
    try:
        for part in ("graph", "golden"):
            name = manifest[part]["file"]
            if Path(name).name != name:
                raise Refused(f"manifest.json names {name!r} outside the bundle", BAD_INPUT)
            str(manifest[part]["sha256"])
        dict(manifest["graph"]["inputs"])
        budget = manifest["target"]["budget"]
        if not all(math.isfinite(budget[key]) and budget[key] > 0 for key in ("p50", "p99", "max", "jitter")):
            raise ValueError("a share of the budget is not above 0")
        list(manifest["target"]["detect"])
        bool(manifest["target"]["any_machine"]), str(manifest["target"]["title"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"manifest.json is incomplete or malformed ({type(error).__name__}: {error})", BAD_INPUT
        ) from None
    return dict(manifest)
