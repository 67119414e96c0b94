"""Films of the guard's findings in a report."""

from __future__ import annotations

from types import SimpleNamespace

from robolearn.commands.report.blocks import Video
from robolearn.commands.report.guarding import PATH, section


def films(tmp_path, video: str) -> int:
    decision = {"iteration": 3, "said": "x", "action": "stopped", "video": video}
    run = SimpleNamespace(folder=tmp_path, results={PATH: {"decisions": [decision]}})
    return sum(isinstance(block, Video) for block in section(run).blocks)


def test_only_a_film_in_the_guards_folder_is_embedded(tmp_path):
    (tmp_path / "guard").mkdir()
    for path in ("guard/finding_1.mp4", "guard/finding_1.pt", "secret.mp4"):
        (tmp_path / path).write_bytes(b"x")
    assert films(tmp_path, "finding_1.mp4") == 1
    assert films(tmp_path, "../secret.mp4") == 0
    assert films(tmp_path, str(tmp_path / "secret.mp4")) == 0
    assert films(tmp_path, "finding_1.pt") == 0
