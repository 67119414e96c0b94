"""A policy trained with histories, late sensors, sensor errors and lost packets runs from its bundle as in the Env."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.export import closed_loop as loop
from robolearn.export import record
from robolearn.export.driver import BundleDriver, config_of
from robolearn.export.record import on_robot
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.sessions import OnnxSession
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.sensing import Sensing
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run
from tests.export.conftest import QUICK

SMALL = ["num_envs=16", "max_iterations=1", "learner.actor_hidden=[16]", "learner.critic_hidden=[16]"]
CARTPOLE = [
    "task=cartpole_balance",
    "task.history=5",
    "task.history.joint_vel_rel=2",
    "task.noise={joint_pos_rel: 0.01}",
    "task.sensing.policy={delay: [1, 2], dropout: 0.2}",
    "task.sensing.joint_pos_rel={slow: [0.02, 0.5], bias: [-0.01, 0.01], delay: [1, 3]}",
    "task.randomize.encoder_bias=[-0.02,0.02]",
    "task.packet_loss=0.1",
    "task.action_delay=[0,1]",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sensed") / "run"
    assert main(["train", *CARTPOLE, *SMALL, f"output={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("sensed") / "bundle"
    assert main(["export", str(run), "--output", str(folder), *QUICK]) == 0
    return Bundle.load(folder)


def test_the_manifest_states_what_the_policy_met_in_training(bundle: Bundle) -> None:
    assert bundle.manifest["conditions"] == {
        "noise": {"joint_pos_rel": 0.01},
        "sensing": {
            "policy": {"delay": [1, 2], "dropout": 0.2},
            "joint_pos_rel": {"slow": [0.02, 0.5], "bias": [-0.01, 0.01], "delay": [1, 3]},
        },
        "randomize": {"encoder_bias": [-0.02, 0.02]},
        "packet_loss": 0.1,
    }
    items = [(item["name"], item["width"], item["history"]) for item in bundle.contract["observations"]]
    assert items == [("joint_pos_rel", 10, 5), ("joint_vel_rel", 4, 2)]
    assert bundle.contract["action_delay"] == [0, 1]


def test_only_the_history_is_in_the_controllers_state(bundle: Bundle) -> None:
    state = {entry["name"]: entry["shape"] for entry in bundle.manifest["state"]}
    assert state == {"past_joint_pos_rel": [1, 5, 2], "past_joint_vel_rel": [1, 2, 2], "started": [1, 1]}
    assert [entry["name"] for entry in bundle.manifest["sensors"]] == ["joint_pos", "joint_vel"]


def test_the_report_names_delays_and_drop_outs_of_training(bundle: Bundle) -> None:
    text = (bundle.folder / "REPORT.md").read_text(encoding="utf-8")
    for said in (
        "delay of `joint_pos_rel`",
        "drop-outs of",
        "slow noise on `joint_pos_rel`",
        "do not arrive",
    ):
        assert said in text


def test_on_the_robot_noise_is_gone_and_what_sensors_do_stays(run: Path) -> None:
    task = on_robot(open_run(str(run)).config).task
    assert (task.noise, task.action_delay) == ({}, (0, 0))
    assert task.sensing == {
        "policy": Sensing(delay=(1, 2), dropout=0.2),
        "joint_pos_rel": Sensing(delay=(1, 3)),
    }
    assert (task.packet_loss, task.randomize, task.history["policy"]) == (
        0.1, {"encoder_bias": Randomized((-0.02, 0.02))}, 5,
    )  # fmt: skip


def gap(run: Path, bundle: Bundle) -> loop.Gap:
    found = open_run(str(run))
    return loop.closed_loop(
        on_robot(found.config), load_policy(found), bundle, OnnxSession(bundle.graph), 16, 1.0, 10.0
    )


def test_the_bundle_drives_as_the_trained_policy_does_from_readings_that_are_late_and_biased(
    run, bundle
) -> None:
    found = gap(run, bundle)
    assert max(abs(found.low), abs(found.high)) < 1e-6
    assert found.target_difference < 1e-6


@pytest.mark.parametrize("wrong", ["not late", "without bias"])
def test_the_closed_loop_refuses_readings_that_are_not_those_of_the_observations(
    run, bundle, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def otherwise(env: Env, names: list[str]) -> dict[str, np.ndarray]:
        given = record.readings(env, names)
        if wrong == "not late":
            errors = env.state.episode.sensor_errors
            now = env._errors.sensed(env.backend.state, errors).robot
            return given | {"joint_vel": now.joint_vel.numpy()}
        bias = env.state.episode.sensor_errors["encoder_bias"].numpy()
        return given | {"joint_pos": given["joint_pos"] - bias}

    monkeypatch.setattr(loop, "readings", otherwise)
    with pytest.raises(Refused, match="joint_vel_rel" if wrong == "not late" else "joint_pos_rel") as refusal:
        gap(run, bundle)
    assert refusal.value.code == NOT_THE_SAME


def test_deploy_prints_what_it_simulates_and_takes_other_values(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seconds", "0.2", "--max-missed", "1", "task.packet_loss=0.5"]
    assert main(["deploy", str(bundle.folder), *words]) in (0, 1)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  simulated")]
    assert "joint_pos_rel delay [1, 3]" in line
    assert "joint_pos_rel slow [0.02, 0.5]" in line
    assert line.startswith("  simulated           joint_pos_rel noise 0.01; ")
    assert line.endswith("encoder_bias [-0.02, 0.02]; packet loss 0.5")


@pytest.fixture
def driven(bundle: Bundle) -> Iterator[Env]:
    env = make_env(config_of(bundle.folder, ["seed=7"]), num_envs=4)
    yield env
    env.close()


def test_a_driven_robot_sees_what_the_policy_sees_also_after_resets(bundle: Bundle, driven: Env) -> None:
    driver, ended = BundleDriver(bundle.folder, driven), 0
    for _ in range(120):
        sent = driver()
        seen = np.stack([runtime.observation for runtime in driver._runtimes])
        assert np.allclose(seen, driven.observations["policy"].numpy(), atol=1e-5)
        ended += int(driven.step(*sent).done.sum())
        driver.reset(driven.state.outcome["renewed"])
    assert ended >= 4
    driver.close()


@pytest.mark.slow
def test_a_humanoid_with_a_tilted_imu_exports_and_is_deployed(tmp_path: Path) -> None:
    words = ["task=velocity", "robot=humanoid", *SMALL, "task.history=3", "task.history.velocity_commands=1"]
    words += ["task.sensing.policy={delay: [0, 2], dropout: 0.1}", "task.packet_loss=0.05"]
    words += ["task.randomize.imu_tilt=[0,0.05]", "task.randomize.imu_bias=[-0.1,0.1]"]
    words += ["task.randomize.encoder_bias=[-0.02,0.02]", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 0
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "bundle"), *QUICK]) == 0
    state = {e["name"] for e in Bundle.load(tmp_path / "bundle").manifest["state"]}
    assert {"past_projected_gravity", "past_last_action", "last_action"} <= state
    assert "past_velocity_commands" not in state
    assert main(["deploy", str(tmp_path / "bundle"), "--seconds", "0.4", "--max-missed", "1"]) in (0, 1)


@pytest.mark.slow
def test_a_training_resumes_bit_for_bit_with_everything_on(tmp_path: Path) -> None:
    def weights(folder: Path) -> dict[str, torch.Tensor]:
        found = load_policy(open_run(str(folder)))
        return found.policy.state_dict()

    words = [*CARTPOLE, "task.observation_delay=[0,1]", *SMALL, "max_iterations=4", "checkpoint_interval=2"]
    assert main(["train", *words, f"output={tmp_path / 'whole'}"]) == 0
    half = [word for word in words if not word.startswith("max_iterations")]
    assert main(["train", *half, "max_iterations=2", f"output={tmp_path / 'half'}"]) == 0
    again = ["max_iterations=4", f"resume={tmp_path / 'half'}", f"output={tmp_path / 'resumed'}"]
    assert main(["train", *again]) == 0
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "resumed")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
