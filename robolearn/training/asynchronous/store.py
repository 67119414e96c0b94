"""Trees of tensors in files of the memory of this machine: how processes hand each other weights and batches.

A file is written beside its place and renamed, so a reader finds all of it or none. It is never changed afterwards: new
weights are a new file with the number of their version, and carry it inside together with their checksum.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from robolearn.files import holder, locked, save_tensors


def shared_memory() -> Path:
    """This user's folder in the memory of this machine, or on disk where there is none."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"robolearn-{os.getuid()}"


class Store:
    """A folder for the files of a run, which is removed at its end."""

    def __init__(self) -> None:
        parent = shared_memory() / "async"
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in parent.iterdir():  # by a learner that was killed
            if left.is_dir() and (left / ".lock").exists() and holder(left) is None:
                shutil.rmtree(left, ignore_errors=True)
        self.folder = parent / uuid.uuid4().hex
        self.folder.mkdir(mode=0o700)
        self._held = ExitStack()
        self._held.enter_context(locked(self.folder))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._held.close()


def write_tree(tree: Any, path: Path) -> None:
    """Write a tree of tensors and plain values; `path` appears when it is complete."""
    part = path.with_suffix(f".{os.getpid()}.part")
    save_tensors(tree, part)  # no fsync: it is memory
    os.replace(part, path)


def read_tree(path: Path) -> Any:
    """What `write_tree` wrote. Its tensors are those of the file, not copies; they stay when the file is removed."""
    return torch.load(path, weights_only=True, map_location="cpu", mmap=True)


def write_weights(folder: Path, version: int, weights: Mapping[str, Any], keep: int = 2) -> None:
    """Write the weights of a version, and remove those older than the newest `keep`."""
    buffer = io.BytesIO()
    torch.save(dict(weights), buffer)
    content = buffer.getvalue()
    head = {"version": version, "sha256": hashlib.sha256(content).hexdigest()}
    part = folder / f".weights.{os.getpid()}.part"
    part.write_bytes(json.dumps(head).encode() + b"\n" + content)
    os.replace(part, folder / f"{version}.weights")
    for path in folder.glob("*.weights"):
        if int(path.stem) <= version - keep:
            path.unlink(missing_ok=True)


def newest_version(folder: Path) -> int:
    """The newest version of weights in a folder; -1 without any."""
    return max((int(path.stem) for path in folder.glob("*.weights")), default=-1)


def read_weights(folder: Path, version: int | None = None) -> tuple[int, dict[str, Any]]:
    """Weights of a version, the newest where none is named, and their version.

    Raises:
        OSError: that version is not there.
        ValueError: the content is not what was written.
    """
    while True:
        wanted = newest_version(folder) if version is None else version
        try:
            head, _, content = (folder / f"{wanted}.weights").read_bytes().partition(b"\n")
            break
        except FileNotFoundError:
            if version is not None or wanted < 0:
                raise
            # A newer one has replaced it meanwhile.
    stated = json.loads(head)
    if stated["version"] != wanted or hashlib.sha256(content).hexdigest() != stated["sha256"]:
        raise ValueError(f"the weights of version {wanted} are damaged")
    return wanted, torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def forget(path: Path) -> None:
    """Remove a file."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
