"""Reading the files of a bundle: only plain files, of bounded size, whatever a manifest says."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.errors import BAD_INPUT, Refused

LARGEST_FILE = 1 << 30
"""Largest file of a bundle [bytes]."""
LARGEST_MANIFEST = 1 << 24
"""Largest manifest.json [bytes]."""
LARGEST_RECORDING = 1 << 28
"""Largest golden.npz, unpacked [bytes]."""
LONGEST_NAME = 100
"""Most characters in the name of a file."""

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


def read(path: Path, largest: int = LARGEST_FILE, missing: str = "") -> bytes:
    """The content of a plain file.

    `missing` is said where there is none; by default that the bundle lacks a file.

    Raises:
        Refused: BAD_INPUT; it is missing, larger than `largest` bytes, a pipe, a device, or cannot be read.
    """
    try:
        # A pipe without a writer would wait for one.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise Refused(f"{path.name} is not a plain file", BAD_INPUT)
            content = file.read(largest + 1)
    except FileNotFoundError:
        absent = missing or f"{path.name} is missing beside manifest.json; copy the whole bundle"
        raise Refused(absent, BAD_INPUT) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Refused(f"{path.name[:LONGEST_NAME]} cannot be read: {why}", BAD_INPUT) from None
    if len(content) > largest:
        raise Refused(f"{path.name} is larger than {largest >> 20} MiB; it is not of a bundle", BAD_INPUT)
    return content


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits.

    Raises:
        Refused: see `read`.
    """
    return hashlib.sha256(read(path)).hexdigest()


def plain_name(name: Any) -> str:
    """`name`, which must be that of a file in the bundle's folder or below.

    Raises:
        Refused: BAD_INPUT; it is none, or leads out of the folder.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    bad = any(part in ("", ".", "..") or len(part) > LONGEST_NAME for part in parts)
    if bad or len(parts) > 8 or "\\" in name or not name.isprintable():
        raise Refused(f"manifest.json names {name!r:.60}, which is no file of a bundle", BAD_INPUT)
    return str(name)


def recording(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; nothing in it is executed.

    Raises:
        Refused: BAD_INPUT; it is damaged, or would take too much memory.
    """
    read(path)  # a plain file
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            size = sum(member.file_size for member in members)
        # Other kinds of compression may unpack to more than they claim.
        if any(
            m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or m.flag_bits & 1
            for m in members
        ):
            raise Refused(f"{path.name} is encrypted or packed in a way that no export writes", BAD_INPUT)
        if size > LARGEST_RECORDING:
            raise Refused(
                f"{path.name} would take {size >> 20} MiB, at most {LARGEST_RECORDING >> 20} are read",
                BAD_INPUT,
            )
        with np.load(path, allow_pickle=False) as file:
            return {name: _bounded(file, name, path.name) for name in file.files}
    except (
        OSError,
        EOFError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        *MALFORMED,
    ) as error:
        raise Refused(
            f"{path.name} cannot be read: {type(error).__name__}: {error!s:.120}", BAD_INPUT
        ) from None


def _bounded(file: Any, name: str, where: str) -> np.ndarray:
    """One array, whose header is read first: it may claim any size."""
    with file.zip.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, kind = reader[version](member)
    size = kind.itemsize
    for count in shape:
        size *= count
    if size > LARGEST_RECORDING or kind.hasobject:
        raise Refused(f"{where}: {name[:LONGEST_NAME]} claims {size} bytes", BAD_INPUT)
    array: np.ndarray = file[name]
    return array
