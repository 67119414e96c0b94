"""Files are written whole or not at all."""

import pytest

from robolearn.errors import ConfigError
from robolearn.files import replacing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
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


def test_a_folder_in_the_way_is_refused_in_a_line(tmp_path):
    with pytest.raises(ConfigError, match="it is a folder"), replacing(tmp_path):
        raise AssertionError("not reached")
