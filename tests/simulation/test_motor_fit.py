"""A learned motor that is fitted to a log predicts it, and goes into a robot.yaml as it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from robolearn.envs.actuators.layer import Factors, Motors
from robolearn.errors import ConfigError
from robolearn.simulation.motor_fit import MotorLog, fit, read_logs, samples
from tests.envs.actuators.robots import arm

SCRIPT = Path(__file__).parents[2] / "scripts" / "fit_motor.py"
DT = 0.004


def pd_with_friction(target: np.ndarray, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """40 Nm/rad, 1.5 Nm s/rad, and 2 Nm of friction."""
    torque: np.ndarray = 40 * (target - position) - 1.5 * velocity - 2 * np.tanh(velocity / 0.3)
    return torque


def log(rows: int = 8000, seed: int = 0, joint: str = "knee") -> MotorLog:
    """A joint that follows its target badly, both of them sums of sines."""
    random = np.random.default_rng(seed)
    time = DT * np.arange(rows)
    target, position, velocity = (np.zeros(rows) for _ in range(3))
    for _ in range(8):
        f, a, p = random.uniform(0.3, 3.0), random.uniform(0.05, 0.3), random.uniform(0, 6, 2)
        target += a * np.sin(2 * np.pi * f * time + p[0])
        position += 0.8 * a * np.sin(2 * np.pi * f * time + p[1])
        velocity += 0.8 * a * 2 * np.pi * f * np.cos(2 * np.pi * f * time + p[1])
    return MotorLog(joint, DT, target, position, velocity, pd_with_friction(target, position, velocity))


def test_a_network_learns_pd_with_friction_to_a_few_percent(tmp_path):
    fitted = fit([log(4000, seed) for seed in range(1, 7)], history=1, steps=1500)
    assert fitted.share < 0.03
    fitted.write(tmp_path / "motor.onnx")
    robot = arm(tmp_path, {"model": "network", "network": "motor.onnx", "effort": 1000.0})
    motors = Motors(robot, 0.002, torch.device("cpu"))
    other = log(2000, seed=0)
    target, pos, vel = (
        torch.tensor(x, dtype=torch.float32)[:, None] for x in (other.target, other.position, other.velocity)
    )
    motion = motors.command(motors.start(target, pos, vel), target)
    ones = Factors(*(torch.ones(2000, 1) for _ in range(4)))
    torque, _ = motors.torque(motion, pos, vel, 0, 1, ones)
    wrong = torque[:, 0].numpy() - other.torque
    assert np.sqrt((wrong**2).mean()) < 0.03 * other.torque.std()


def test_samples_are_the_newest_first():
    rows = np.arange(200.0)
    inputs, torque = samples(MotorLog("", DT, rows, np.zeros(200), 1000 + rows, 5 * rows), 3, 2)
    assert inputs[0].tolist() == [4, 2, 0, 1004, 1002, 1000]
    assert inputs[-1].tolist() == [199, 197, 195, 1199, 1197, 1195]
    assert torque[[0, -1]].tolist() == [20, 995]


def test_the_same_seed_gives_the_same_network():
    one, same, other = (fit([log(1000)], history=2, steps=20, seed=seed) for seed in (1, 1, 2))
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(one.network(rows), same.network(rows))
    assert not torch.equal(one.network(rows), other.network(rows))


def table(path: Path, logs: list[MotorLog], leave_out: str = "") -> Path:
    """A CSV of these motors."""
    columns = {"time": DT * np.arange(len(logs[0].torque))}
    for each in logs:
        for name in ("target", "position", "velocity", "torque"):
            columns[f"{name}.{each.joint}"] = getattr(each, name)
    columns.pop(leave_out, None)
    body = np.stack(list(columns.values()), axis=1)
    np.savetxt(path, body, delimiter=",", header=",".join(columns), comments="")
    return path


def test_logs_of_several_motors_are_read_by_joint(tmp_path):
    path = table(tmp_path / "log.csv", [log(600, joint="a"), log(600, 1, joint="b")])
    both, one = read_logs(path), read_logs(path, ["b"])
    assert [each.joint for each in both] == ["a", "b"]
    assert one[0].dt == pytest.approx(DT)
    assert np.allclose(one[0].torque, both[1].torque)
    assert np.allclose(both[0].target, log(600).target)


def test_a_log_of_sysid_whose_stamps_scatter_is_read_on_its_regular_clock(tmp_path):
    true, stamps = log(1000), DT * np.arange(1000)
    stamps = stamps + np.random.default_rng(0).uniform(-1e-3, 1e-3, 1000)
    columns = {name: getattr(true, name)[:, None] for name in ("target", "position", "velocity", "torque")}
    np.savez(tmp_path / "log.npz", time=stamps, joints=np.array(["knee"]), **columns)
    (found,) = read_logs(tmp_path / "log.npz")
    assert found.dt == pytest.approx(DT, rel=1e-4)
    n = min(len(found.torque), 990)
    assert np.abs(found.torque[:n] - true.torque[:n]).max() < 0.05 * true.torque.std()


@pytest.mark.parametrize(
    ("leave_out", "joints", "named"),
    [
        ("time", [], "time"),
        ("velocity.a", [], "velocity.a"),
        ("torque.a", [], "torque"),
        ("", ["knee"], "'knee'"),
    ],
)
def test_a_log_that_lacks_something_is_refused_by_name(tmp_path, leave_out, joints, named):
    with pytest.raises(ConfigError, match=named):
        read_logs(table(tmp_path / "log.csv", [log(600, joint="a")], leave_out), joints)


def test_a_log_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    for text in ("", "time,torque\n1\n", "time,torque\n1,x\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"log\.csv"):
            read_logs(path)
    with pytest.raises(ConfigError, match="nowhere"):
        read_logs(tmp_path / "nowhere.csv")


def test_settings_that_do_not_fit_the_log_are_refused():
    for keys, named in (
        ({"interval": 0.005}, "interval"),
        ({"history": 0}, "history"),
        ({"history": 500}, "history"),
        ({"unit": "Sinus"}, "Sinus"),
    ):
        with pytest.raises(ConfigError, match=named):
            fit([log(1000)], steps=1, **keys)


@pytest.mark.slow
def test_the_script_writes_a_network_or_one_line(tmp_path):
    path = table(tmp_path / "log.csv", [log(1000, joint="knee")])
    words = [sys.executable, str(SCRIPT), str(path), str(tmp_path / "knee.onnx"), "--steps", "50"]
    done = subprocess.run([*words, "--interval", "0.008"], capture_output=True, text=True, check=True)
    assert "network: knee.onnx" in done.stdout
    robot = arm(tmp_path, {"model": "network", "network": "knee.onnx"})
    (network,) = Motors(robot, 0.002, torch.device("cpu")).networks
    assert (network.samples, network.stride) == (3, 4)
    bad = subprocess.run([*words, "--joint", "hip"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stderr.startswith("fit_motor.py: ")
    assert bad.stderr.count("\n") == 1
