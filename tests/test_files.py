"""Atomic writing of files."""

import errno
import os
from pathlib import Path

import pytest
import torch

from robolearn.errors import ConfigError
from robolearn.files import remove_leftovers, replacing, save_tensors


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


def test_only_what_a_killed_process_left_half_written_is_removed(tmp_path):
    killed = 2**22 + 1  # Linux gives no process a larger number than 2^22
    below = tmp_path / "data"
    below.mkdir()
    kept = [
        f".metrics.{os.getpid()}.part.json",  # of this process, which runs
        ".thesis.part2.tex",
        ".notes.partial",
        f"data/.latest.{killed}.part.pt",
    ]
    for name in (*kept, f".latest.{killed}.part.pt", f".walk.{killed}.part"):
        (tmp_path / name).write_text("x")
    (tmp_path / f".jetson-thor.{killed}.part").mkdir()  # of a killed export, which removes it itself
    remove_leftovers(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {*kept, "data", f".jetson-thor.{killed}.part"}


@pytest.mark.parametrize(
    "values", [1, 100_000], ids=["noticed when the file is closed", "noticed in between"]
)
def test_tensors_that_a_full_disk_does_not_take_are_an_error_of_the_file_and_not_of_torch(values):
    with pytest.raises(OSError) as caught:  # noqa: PT011
        save_tensors({"weights": torch.zeros(values)}, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


def test_another_error_of_torch_stays_what_it_is(tmp_path):
    class Odd:
        def __reduce__(self):
            raise RuntimeError("odd")

    with pytest.raises(RuntimeError, match="odd"):
        save_tensors({"odd": Odd()}, tmp_path / "file.pt")


def test_saved_tensors_are_read_again(tmp_path):
    save_tensors({"weights": torch.arange(3.0)}, tmp_path / "file.pt")
    assert torch.load(tmp_path / "file.pt", weights_only=True)["weights"].tolist() == [0.0, 1.0, 2.0]
