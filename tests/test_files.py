"""Atomic writing of files."""

import pytest

from robolearn.errors import ConfigError
from robolearn.files import replacing


def test_an_exception_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "new" / "file.json"
    with replacing(path) as part:
        part.write_text("one")

    def stopped() -> None:
        with replacing(path) as part:
            part.write_text("tw")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stopped()
    assert [(p.name, p.read_text()) for p in path.parent.iterdir()] == [("file.json", "one")]


def test_writing_to_the_path_of_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="it is a folder"), replacing(tmp_path):
        raise AssertionError("not reached")
