"""Writing of files, atomically or with tensors, and locks of folders."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from robolearn.errors import ConfigError, quote


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the folder of `path`; it replaces `path` at the end, and is removed on an error.

    A reader sees the old file or the complete new one, also after a power loss. A missing folder is created.

    Raises:
        ConfigError: the folder or the file cannot be written.
    """
    if not path.name or path.is_dir():
        raise ConfigError(f"cannot write {quote(str(path), 120)}: it is a folder")
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())  # the content first: the rename may reach the disk before it
        os.replace(part, path)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot write {quote(str(path), 120)}: {why}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """Where `replacing` writes the file `path` of this process."""
    # The suffix stays: encoders take the format of a video from it.
    return path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")


_PART = re.compile(r"\..+\.(\d+)\.part(\.[^.]*)?")
"""Names of the files that `replacing` yields."""


def remove_leftovers(*folders: Path) -> None:
    """Remove what `replacing` left half written in these folders, and not below them, where its process was killed."""
    for folder in folders:
        for path in folder.glob(".*.part*"):
            found = _PART.fullmatch(path.name)
            if found is not None and path.is_file() and _ended(int(found[1])):
                path.unlink(missing_ok=True)


def _ended(process: int) -> bool:
    """Whether no process of this machine has this id."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


def save_tensors(tree: Any, path: Path) -> None:
    """Write a tree of tensors and plain values to a file, as `torch.load` reads it.

    Raises:
        OSError: the file cannot be written, as on a full disk.
    """
    import torch  # here: `robolearn --help` needs this module, and no torch

    # An open file, because of a path torch says only "unexpected pos", and not why.
    with path.open("wb") as file:
        try:
            torch.save(tree, file)
        except RuntimeError as error:
            reason = error.__context__
            if isinstance(reason, OSError):
                raise OSError(reason.errno, reason.strerror, str(path)) from error
            raise


LOCK = ".lock"
"""The lock file in a folder. It stays after use: what counts is the kernel's lock on it."""


@contextmanager
def locked(folder: Path, advice: str = "add output=DIR") -> Iterator[None]:
    """Lock a folder for this process. The kernel releases the lock when the process ends, also by kill -9.

    `advice` says how to use another folder. Worker processes do not inherit the lock. On a file system without locks,
    nothing is locked.

    Raises:
        ConfigError: another process has locked it, named by id, host and time; or the folder cannot be written to.
    """
    path = folder / LOCK
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {quote(str(path), 120)}: {error.strerror}") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read(200).strip() or "another process"
            raise ConfigError(
                f"{quote(str(folder), 120)} is in use by {holder}; wait until it ends, or {advice}"
            ) from None
        except OSError:
            pass
        file.truncate(0)
        since = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
        file.flush()
        yield


def holder(folder: Path) -> str | None:
    """The process that has locked a folder, as its lock file names it; None where none has."""
    try:
        # "r": a lock file that is not there stays away.
        with (folder / LOCK).open(encoding="utf-8", errors="replace") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return file.read(200).strip() or "another process"
    except OSError:
        pass
    return None
