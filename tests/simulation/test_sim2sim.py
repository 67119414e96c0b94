"""Comparisons between simulators, on numbers worked out by hand, and between the real ones."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robolearn.cli import main
from robolearn.commands import compare_backends
from robolearn.config import registry
from robolearn.errors import RunFailed
from robolearn.simulation import sim2sim
from robolearn.simulation.side import Request, Side, simulate
from tests.factories import INSTALLED

JOINTS = ["hip", "knee"]


def side(name: str = "a", **changes: Any) -> Side:
    """Two joints that follow a step of their targets with a time constant of 5 control steps."""
    t = np.arange(1, 16)
    rise = 0.15 * (1 - np.exp(-t / 5))
    speed = np.gradient(rise)
    joint_pos, joint_vel = np.zeros((15, 3, 2)), np.zeros((15, 3, 2))
    for i in range(2):
        joint_pos[:, i, i], joint_vel[:, i, i] = rise, speed
    slide = 1 - 0.02 * t
    probes = {
        "joint_pos": joint_pos,
        "joint_vel": joint_vel,
        "drop_height": np.full(50, 0.6),
        "drop_force": np.full(50, 400.0),
        "slide_speed": slide,
    }
    made = Side(
        name,
        0.02,
        {"survival": np.array([1.0, 1.0, 0.0, 1.0]), "torque": np.array([0.1, 0.2, np.nan, 0.4])},
        np.zeros((10, 4, 3), np.float32),
        ["gravity[0]", "gravity[1]", "joint_pos[0]"],
        probes,
        {"joints": JOINTS, "actuators": JOINTS, "run": "r", "iteration": 1, "task": "t", "robot": "x"},
    )
    made.facts |= {"derived_lag": 1, "timestep": 0.01, "pd": "implicit", "seconds": 1.0, "steps": 10}
    return replace(made, **changes)


def cause(other: Side, name: str) -> sim2sim.Cause:
    return next(each for each in sim2sim.causes(side(), other) if each.name == name)


def test_equal_sides_have_no_gap_never_part_and_exclude_every_cause() -> None:
    found = sim2sim.compare(side(), side("b"))
    assert {gap.mean for gap in found.gaps.values()} == {0.0}
    assert not any(gap.differs for gap in found.gaps.values())
    assert found.divergence.median is None
    assert all(each.excluded for each in found.causes)
    assert found.survival == 1.0


def test_gaps_are_over_pairs_and_leave_out_those_without_a_value() -> None:
    other = side("b")
    other.episodes = {"survival": np.array([1.0, 0.0, 0.0, 1.0]), "torque": np.array([0.2, 0.3, 0.3, 0.5])}
    found = sim2sim.gaps(side(), other)
    assert (found["survival"].reference, found["survival"].other) == (0.75, 0.5)
    assert found["survival"].mean == -0.25
    torque = found["torque"]
    assert torque.pairs == 3
    assert torque.mean == pytest.approx(0.1)
    assert torque.low == pytest.approx(0.1)  # every pair differs by 0.1
    assert torque.differs
    assert not found["survival"].differs
    assert sim2sim.compare(side(), other).survival == pytest.approx(2 / 3)


def test_agents_of_a_world_are_one_pair() -> None:
    one, other = side(), side("b")
    one.facts = {**one.facts, "agents": 2}
    # Two worlds: in one both agents fall in the other simulator, in the other world none does.
    one.episodes = {
        "survival": np.array([1.0, 1.0, 1.0, 1.0]),
        "torque": np.array([0.1, np.nan, np.nan, np.nan]),
    }
    other.episodes = {"survival": np.array([0.0, 0.0, 1.0, 1.0]), "torque": np.array([0.3, 0.3, 0.3, 0.3])}
    found = sim2sim.gaps(one, other)
    assert (found["survival"].pairs, found["survival"].mean) == (2, -0.5)
    assert (found["torque"].pairs, found["torque"].mean) == (1, pytest.approx(0.2))
    assert "2 pairs of worlds of 2 agents" in sim2sim.table(one, sim2sim.compare(one, other))


def test_a_measure_of_what_one_simulator_shows_later_says_so() -> None:
    other = side("b")
    other.episodes = {name: values + 0.1 for name, values in other.episodes.items()}
    other.facts = {**other.facts, "derived_lag": 0}
    found = sim2sim.compare(side(), other)
    assert (found.gaps["torque"].lag, found.gaps["survival"].lag) == (1, 0)
    text = [line for line in sim2sim.table(side(), found).splitlines() if "differs" in line]
    assert len(text) == 2
    assert [line.strip().split()[0] for line in text if line.endswith("apart")] == ["torque"]


def test_observations_part_at_the_first_step_that_differs_by_a_tenth_of_the_spread() -> None:
    a, b = np.zeros((10, 4, 3), np.float32), np.zeros((10, 4, 3), np.float32)
    a[:, :, 1] = b[:, :, 1] = np.where(np.arange(40).reshape(10, 4) % 2, 1.0, -1.0)  # standard deviation 1
    b[4:, 0, 1] += 0.2  # parts after 5 steps, 0.1 s
    b[1:, 1, 1] += 0.09  # too little
    b[6:, 2, 2] += 1.0  # after 7 steps, 0.14 s
    found = sim2sim.divergence(side(observations=a), side("b", observations=b))
    assert found.share == 0.5
    assert found.median == pytest.approx(0.12)
    assert dict(found.columns) == {"gravity[1]": 0.5, "joint_pos[0]": 0.5}


def test_an_episode_that_ends_in_one_simulator_only_has_parted() -> None:
    b = np.zeros((10, 4, 3), np.float32)
    b[5:, 3] = np.nan
    found = sim2sim.divergence(side(), side("b", observations=b))
    assert found.share == 0.25
    assert found.median == pytest.approx(0.12)  # the sixth step
    assert found.columns == (("episode ended", 1.0),)


def changed(**probes: Any) -> Side:
    base = side("b")
    return replace(base, probes={**base.probes, **probes})


def test_swapped_joints_and_a_wrong_sign_are_found() -> None:
    swapped = side().probes["joint_pos"][:, [1, 0, 2]]
    assert cause(changed(joint_pos=swapped), "joint order and signs").excluded is False
    turned = side().probes["joint_pos"].copy()
    turned[:, 1] *= -1
    found = cause(changed(joint_pos=turned), "joint order and signs")
    assert found.excluded is False
    assert found.evidence.startswith("knee")


def test_another_order_of_the_same_joints_is_no_difference() -> None:
    other = changed(joint_pos=side().probes["joint_pos"][:, :, [1, 0]])
    other.facts = {**other.facts, "joints": ["knee", "hip"]}
    assert cause(other, "joint order and signs").excluded is True


def test_weaker_gains_are_found_and_named() -> None:
    weaker = side().probes["joint_pos"].copy()
    weaker[:, 1, 1] *= 0.9
    found = cause(changed(joint_pos=weaker), "gains, armature, joint friction")
    assert found.excluded is False
    assert "10 % (knee)" in found.evidence


@pytest.mark.parametrize("late", [1, 2])
def test_a_delay_is_found_with_its_number_of_steps(late) -> None:
    velocity = side().probes["joint_vel"]
    delayed = np.concatenate([np.zeros_like(velocity[:late]), velocity[:-late]])
    found = cause(changed(joint_vel=delayed), "delay")
    assert found.excluded is False
    assert f"{late} control steps later" in found.evidence


def test_less_friction_and_a_softer_ground_are_found() -> None:
    t = np.arange(1, 16)
    assert cause(changed(slide_speed=1 - 0.01 * t), "friction").excluded is False
    assert cause(changed(slide_speed=1.1 + 0.02 * t), "friction").excluded is None  # it tips over
    assert cause(changed(drop_height=np.full(50, 0.58)), "contact model").excluded is False
    assert cause(changed(drop_force=np.full(50, 500.0)), "contact model").excluded is False


def test_a_fixed_base_is_not_probed_for_contact() -> None:
    fixed = replace(side(), probes={k: v for k, v in side().probes.items() if k.startswith("joint")})
    found = {each.name: each.excluded for each in sim2sim.causes(fixed, fixed)}
    assert found["friction"] is None
    assert found["contact model"] is None


def test_a_side_survives_its_file(tmp_path) -> None:
    side().save(tmp_path / "side.npz")
    again = Side.load(tmp_path / "side.npz")
    assert again.facts == side().facts
    assert sim2sim.compare(side(), again).divergence.median is None


both = pytest.mark.skipif("mujoco_warp" not in INSTALLED, reason="MuJoCo Warp is not installed")


@both
def test_two_simulators_get_the_same_starts_and_commands(trained, tmp_path, capsys) -> None:
    words = [
        "eval",
        str(trained),
        "--backend",
        "mujoco,mujoco_warp",
        "--episodes",
        "4",
        "--output",
        str(tmp_path),
    ]
    assert main([*words, "task.episode_length_s=0.5"]) == 0
    found = json.loads((tmp_path / "sim2sim.json").read_text())
    assert found["reference"] == "mujoco"
    (comparison,) = found["comparisons"].values()
    assert comparison["gaps"]["episode_length"]["mean"] == 0.0
    assert comparison["gaps"]["return"]["mean"] == pytest.approx(0.0, abs=1e-3)
    excluded = {each["name"]: each["excluded"] for each in comparison["causes"]}
    assert excluded["joint order and signs"] is True
    assert excluded["friction"] is None
    assert "mujoco_warp against mujoco: 4 pairs" in capsys.readouterr().out


@pytest.mark.slow
def test_a_simulator_of_another_python_gives_the_same_bits_and_its_lines(trained, tmp_path, capfd) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho noise >&2\necho robolearn: other motors >&2\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    request = Request(str(trained), ("backend=mujoco", "task.episode_length_s=0.2"), 3)
    here, there = simulate(request), simulate(request, str(python))
    assert capfd.readouterr().err == "robolearn: other motors\n"
    assert np.array_equal(here.observations, there.observations, equal_nan=True)
    assert np.array_equal(here.episodes["return"], there.episodes["return"])


@pytest.mark.parametrize(
    ("words", "offender", "code"),
    [
        (["--backend", "mujoco,mujocco"], "mujocco", 2),
        (["--backend", "mujoco,mujoco"], "mujoco,mujoco", 2),
        (["--backend", "mujoco,mujoco_warp", "num_envs=3"], "num_envs=3", 2),
        (
            ["--backend", "mujoco,mujoco_warp", "backend.threads=1"],
            "--backend mujoco_warp: 'backend.threads=1'",
            2,
        ),
        (["--backend", "mujoco,mujoco_warp", "--gap"], "--gap", 2),
        (["--backend", "mujoco", "--python", "isaaclab=x"], "--python", 2),
        (["--backend", "mujoco,isaaclab", "--python", "isaaclab=/no/python"], "/no/python", 2),
    ],
)
def test_bad_input_is_named_and_writes_nothing(trained, tmp_path, capsys, words, offender, code) -> None:
    out = tmp_path / "out"
    extra = ["--episodes", "2", "task.episode_length_s=0.1", "--output", str(out)]
    assert main(["eval", str(trained), *words, *extra]) == code
    assert offender in capsys.readouterr().err
    assert not Path(out, "sim2sim.json").exists()


def test_a_simulator_of_another_python_need_not_be_installed_here(trained, tmp_path, monkeypatch) -> None:
    """No Python here has a backend of that name, so opening it here would end the command."""
    asked = []

    def simulated(request: Request, python: str | None = None) -> None:
        asked.append((request.words[-1], python))
        raise RunFailed("as far as this test goes")

    monkeypatch.setattr(compare_backends, "simulate", simulated)
    monkeypatch.setattr(registry, "names", lambda kind: ["elsewhere", "mujoco"])
    with pytest.raises(RunFailed):
        compare_backends.compare_backends(
            str(trained), ["elsewhere", "mujoco"], output=tmp_path, pythons={"elsewhere": sys.executable}
        )
    assert asked == [("backend=elsewhere", sys.executable)]
