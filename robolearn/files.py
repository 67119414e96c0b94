"""Writing files so that a reader, or a machine that loses power, sees the old one or the whole new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from robolearn.errors import ConfigError, quote


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write instead of `path`, in the same folder; moved there at the end, removed on an error.

    The folder is made where it is not there.

    Raises:
        ConfigError: the folder or the file cannot be written.
    """
    if not path.name or path.is_dir():
        raise ConfigError(f"cannot write {quote(str(path), 120)}: it is a folder")
    # The suffix stays: a video's says its format.
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())  # the bytes before the name: a rename may reach the disk first
        os.replace(part, path)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot write {quote(str(path), 120)}: {why}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
