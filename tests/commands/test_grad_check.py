"""`robolearn grad-check`: correct gradients pass, wrong ones fail, and each scene is in the regime of its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("warp")

from robolearn import cli, config
from robolearn.commands import exits
from robolearn.commands.grad_check import differences, grad_check
from robolearn.commands.grad_check.differences import (
    Agreement,
    Scene,
    compare_returns,
    relative_error,
    simulate,
)
from robolearn.commands.grad_check.scenes import Scenes, airborne_throughout, stood_throughout, touched_down
from robolearn.core.env import Env
from robolearn.envs.differentiable.own import OwnEngine
from robolearn.envs.state import InitialState
from robolearn.training.build import make_env

CARTPOLE = ["grad-check", "task=cartpole_balance", "--directions", "4", "--envs", "4"]
HOPPER = ["grad-check", "task=hopper_run", "--directions", "3", "--envs", "4"]


def verdicts(text: str) -> dict[str, str]:
    """Verdict by regime and steps, from a printed table."""
    lines = text.partition("verdict\n")[2].partition("\n\n")[0].splitlines()
    return {line[:24].strip(): line[56:] for line in lines}


@contextmanager
def scenes_of(task: str, num_envs: int = 6) -> Iterator[tuple[Env, Scenes]]:
    env = make_env(config.resolve([f"task={task}", "backend=differentiable"]), num_envs)
    yield env, Scenes(env.backend, env.robot, env.substeps, env.ctx.dt, torch.Generator().manual_seed(1))
    env.close()


@pytest.fixture
def gradients_one_percent_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = OwnEngine.backward

    def wrong(self, *arguments):
        return tuple(1.01 * gradient for gradient in correct(self, *arguments))

    monkeypatch.setattr(OwnEngine, "backward", wrong)


# ---------------------------------------------------------------------------------------- the command


def test_the_gradients_of_a_robot_without_feet_pass(capsys) -> None:
    assert cli.main([*CARTPOLE, "backend=auto"]) == exits.OK
    out = capsys.readouterr().out
    assert verdicts(out) == dict.fromkeys(
        (
            "smooth motion          1",
            "smooth motion          8",
            "reward                 1",
            "reward                 8",
        ),
        "PASS",
    )
    assert "cartpole_balance on differentiable: 4 robots, 4 directions, seed 1\n" in out
    assert "central differences in float64" in out


def test_a_wrong_gradient_fails(gradients_one_percent_too_large, capsys) -> None:
    assert cli.main(CARTPOLE) == exits.CHECK_FAILED
    found = verdicts(capsys.readouterr().out)
    assert set(found.values()) == {"FAIL"}, found


def test_standing_is_asserted_and_touching_down_is_only_reported(capsys) -> None:
    assert cli.main(HOPPER) == exits.OK
    out = capsys.readouterr().out
    found = {" ".join(name.split()): verdict for name, verdict in verdicts(out).items()}
    asserted = {f"{name} {steps}" for name in ("smooth motion", "sustained contact") for steps in (1, 8)}
    reported = {f"{name} {steps}" for name in ("contact onset", "reward") for steps in (1, 8)}
    assert found == {**dict.fromkeys(asserted, "PASS"), **dict.fromkeys(reported, "reported")}
    notes = out.partition("\n\nsmooth motion: ")[2].splitlines()
    assert [note.partition(":")[0] for note in notes[1:]] == ["sustained contact", "contact onset", "reward"]


def test_without_float64_differences_are_taken_in_float32(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(grad_check, "_in_float64", lambda cfg, env: None)
    assert cli.main(CARTPOLE) == exits.OK
    assert "central differences in float32, without forces and torques\n" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_table(capsys) -> None:
    tables = []
    for seed in (3, 3, 4):
        cli.main([*CARTPOLE, f"seed={seed}"])
        tables.append(capsys.readouterr().out.partition("verdict")[2])
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["backend=mujoco"], "backend=mujoco"),
        (["--envs", "1"], "'--envs'"),
        (["--directions", "0"], "'--directions'"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys) -> None:
    assert cli.main(["grad-check", "task=cartpole_balance", *words]) == exits.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


# ---------------------------------------------------------------------------------------- the regimes


@pytest.mark.parametrize("steps", grad_check.STEPS)
def test_every_robot_of_a_scene_is_in_its_regime_and_in_no_other(steps: int) -> None:
    with scenes_of("hopper_run") as (env, scenes), torch.no_grad():
        regimes = {
            airborne_throughout: scenes.smooth,
            stood_throughout: scenes.standing,
            touched_down: scenes.onset,
        }
        for in_regime, make in regimes.items():
            rollout = simulate(env.backend, make(steps), {})
            assert [r(rollout).all().item() for r in regimes] == [r is in_regime for r in regimes]
        falls = scenes.onset(steps)
        assert falls.start.joint_pos[:, 1].unique().numel() == env.num_envs  # all heights differ


def test_a_row_with_robots_outside_its_regime_is_not_asserted() -> None:
    poor = Agreement([1.0], {1e-3: 1.0})
    assert grad_check.Row("sustained contact", 1, poor, 1e-2).passed is False
    row = grad_check.Row("sustained contact", 1, poor, 1e-2, "only 3 of 4 robots")
    assert row.passed is None
    assert str(row).endswith("reported   only 3 of 4 robots")


def test_half_of_the_robots_are_reset_in_the_middle() -> None:
    with scenes_of("cartpole_balance") as (env, scenes):
        scene = scenes.smooth(8)
        assert scene.reset.tolist() == [False, True] * 3
        leaves = {
            name: torch.zeros(shape, requires_grad=True)
            for kind in differences.KINDS
            for name, shape in scene.inputs(kind).items()
        }
        final = simulate(env.backend, scene, leaves).final["joint_pos"]
        by = torch.autograd.grad(final.sum(), list(leaves.values()), allow_unused=True)
    grads = dict(zip(leaves, by, strict=True))
    before, after = grads["targets"][:4], grads["targets"][4:]
    assert (before[:, scene.reset] == 0).all()
    assert (before[:, ~scene.reset] != 0).all()
    assert (after != 0).all()
    first, second = grads["joint_vel"]
    assert (first[scene.reset] == 0).all()
    assert (first[~scene.reset] != 0).all()
    assert (second[scene.reset] != 0).all()
    assert (second[~scene.reset] == 0).all()


def test_a_perturbation_rotates_the_base_about_its_body_axes() -> None:
    half = torch.tensor([0.5]).sqrt()
    # A quarter turn about x; then 0.02 rad about the body's z axis, which is the world's -y.
    quat = torch.cat((half, half, torch.zeros(2)))[None]
    zeros = torch.zeros(1, 3)
    initial = InitialState(zeros, quat, zeros, zeros, torch.zeros(1, 1), torch.zeros(1, 1))
    turn = torch.tensor([[[0.0, 0.0, 0.02]], [[0.0, 0.0, 0.0]]])
    turned = differences._perturbed(initial, {"turn": turn}, 0, torch.float32).base_quat[0]
    c, s = torch.cos(torch.tensor(0.01)), torch.sin(torch.tensor(0.01))
    assert turned.tolist() == pytest.approx((half * torch.stack((c, c, -s, s))).tolist(), abs=1e-6)


# ---------------------------------------------------------------------------------------- the numbers


def test_the_relative_error_is_that_of_norms_over_all_environments() -> None:
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])) == pytest.approx(0.75)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(torch.ones(2), torch.zeros(2)) == float("inf")
    assert relative_error(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")


def test_the_error_of_a_direction_is_that_of_its_best_difference_step() -> None:
    # The central difference of x^3 at 1 with step h is 3 + h^2: its error falls with h.
    def cubes(actions: torch.Tensor) -> torch.Tensor:
        return actions.pow(3).sum(dim=(0, 2))

    random = torch.Generator().manual_seed(1)
    found = compare_returns(cubes, cubes, torch.ones(2, 3, 1), 4, random)
    assert found.worst < 1e-8
    assert list(found.by_step) == list(differences.STEPS_64)
    assert 1e-7 < found.by_step[1e-3] < 6e-6
    assert Agreement([0.1, 0.4, 0.2], {}).worst == 0.4
    assert Agreement([0.1, 0.4, 0.2], {}).median == 0.2


def test_a_scene_gives_the_shapes_of_its_inputs() -> None:
    with scenes_of("hopper_run", 2) as (_, scenes):
        scene: Scene = scenes.smooth(8)
    assert scene.inputs("targets") == {"targets": (8, 2, 3)}
    assert scene.inputs("positions") == {"base_pos": (2, 2, 3), "turn": (2, 2, 3), "joint_pos": (2, 2, 6)}
