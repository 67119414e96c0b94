"""Building an Env: what the simulator or the machine lacks is named in one line."""

from __future__ import annotations

import pytest
import torch

from robolearn.cli import main
from tests.envs.scenes import hopper

TASK = """
from dataclasses import dataclass
from robolearn.tasks.cartpole import CartpoleBalance


@dataclass
class Stand(CartpoleBalance):
    robot: str = {robot!r}
"""


@pytest.mark.parametrize("option", ["solver: PGS", "integrator: DISCRETE, noslip_iterations: 3"])
def test_an_unsupported_option_of_mujoco_warp_is_refused_naming_robot_and_option(option, tmp_path, capsys):
    pytest.importorskip("mujoco_warp")
    (tmp_path / "hopper").mkdir()
    options = f"solver:\n  mujoco_warp: {{timestep: 0.005, {option}}}\n"
    robot = hopper(tmp_path / "hopper", ("solver:\n", options))
    (tmp_path / "more.py").write_text(TASK.format(robot=str(robot)))
    words = ["--task", f"{tmp_path / 'more.py'}:Stand", "--backend", "mujoco_warp", "--num-envs", "2"]
    assert main(["sim", *words, "device=cpu"]) == 2
    error = capsys.readouterr().err
    assert "backend=mujoco_warp cannot simulate robot hopper: " in error
    assert ("PGS" if "PGS" in option else "noslip") in error
    assert len(error.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_refused_with_one_line(device, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mujoco_warp")
    monkeypatch.chdir(tmp_path)
    for words in (
        ["sim", "--task", "humanoid_walk", f"device={device}", "--num-envs", "8"],
        ["train", "task=humanoid_walk", f"device={device}", "num_envs=8"],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "no CUDA GPU was found; use device=cpu" in error
        assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
