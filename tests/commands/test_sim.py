"""`robolearn sim`: gates, JUnit report and exit codes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from robolearn.cli import main
from robolearn.commands import sim
from robolearn.commands.checks import Check, Group, junit_xml
from robolearn.commands.sim import REPEATED_STEPS, Outcome, judge
from tests.as_on_gpu import unread

GATES = ["divergence", "finite", "real_time_factor", "survival", "deterministic"]
QUICK = ("--steps", "30", "--num-envs", "8", "--min-real-time-factor", "0")

TASKS = """
import random
from dataclasses import dataclass
import torch
from robolearn.tasks.cartpole import CartpoleBalance

random_of_the_system = random.SystemRandom()


@dataclass
class NotFinite(CartpoleBalance):
    '''A reward that is NaN from step 10 on.'''

    def reward_terms(self):
        late = lambda state, ctx: torch.where(ctx.episode_time > 0.19, float("nan"), 1.0)
        return {**super().reward_terms(), "upright": late}


@dataclass
class Explodes(CartpoleBalance):
    '''Carts that start at 1e5 m/s, which diverges.'''

    def initial_state(self, num_envs, ctx, random):
        initial = super().initial_state(num_envs, ctx, random)
        initial.joint_vel = torch.full((num_envs, 2), 1e5)
        return initial


@dataclass
class Unseeded(CartpoleBalance):
    '''Draws random numbers that do not depend on the seed.'''

    def initial_state(self, num_envs, ctx, random):
        initial = super().initial_state(num_envs, ctx, random)
        initial.joint_pos[:, 1] = random_of_the_system.uniform(-0.3, 0.3)
        return initial
"""


@pytest.fixture
def tasks(tmp_path) -> Path:
    path = tmp_path / "more_tasks.py"
    path.write_text(TASKS)
    return path


def ask(*words: object) -> int:
    return main(["sim", *(str(word) for word in words)])


def verdicts(printed: str) -> dict[str, str]:
    lines = [
        line.split()[:2] for line in printed.splitlines() if line.split()[1:2] and line.split()[1] in GATES
    ]
    return {gate: verdict for verdict, gate in lines}


def checksum(printed: str) -> str:
    found = re.search(r"^checksum sha256:([0-9a-f]{64})$", printed, re.MULTILINE)
    assert found, printed
    return found[1]


def test_the_zero_policy_passes_every_gate_but_survival_which_is_skipped(tmp_path, capsys):
    assert ask("--task", "cartpole_balance", *QUICK, "--junit", tmp_path / "out" / "sim.xml") == 0
    printed = capsys.readouterr().out
    assert verdicts(printed) == {gate: "SKIP" if gate == "survival" else "PASS" for gate in GATES}
    suite = ET.parse(tmp_path / "out" / "sim.xml").getroot().find("testsuite")
    assert suite is not None
    assert [case.get("name") for case in suite.iter("testcase")] == GATES
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "0", "1")
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["backend"] == "mujoco"
    assert (properties["seed"], properties["steps"], properties["num_envs"], properties["policy"]) == (
        "1",
        "30",
        "8",
        "zero",
    )
    assert properties["checksum"] == checksum(printed)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["sim.xml"]


def test_a_humanoid_with_the_zero_policy_fails_no_gate(capsys):
    words = ("--task", "humanoid_walk", "--steps", 20, "--num-envs", 4, "--min-real-time-factor", 0)
    assert ask(*words) == 0
    assert "FAIL" not in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["zero", "random"])
def test_the_same_seed_gives_the_same_checksum_and_another_seed_a_different_one(policy, capsys):
    sums = []
    for seed in (3, 3, 4):
        assert ask("--task", "cartpole_balance", "--policy", policy, "--seed", seed, *QUICK) == 0
        sums.append(checksum(capsys.readouterr().out))
    assert sums[0] == sums[1] != sums[2]


def test_the_deterministic_gate_passes_with_more_steps_than_are_repeated(capsys):
    words = ("--steps", REPEATED_STEPS + 5, "--num-envs", 4, "--min-real-time-factor", 0)
    assert ask("--task", "cartpole_balance", "--policy", "random", *words) == 0
    assert verdicts(capsys.readouterr().out)["deterministic"] == "PASS"


def test_a_failed_gate_is_exit_code_1_and_a_failure_in_the_report(tmp_path, capsys):
    junit = tmp_path / "sim.xml"
    words = ("--steps", 5, "--num-envs", 2, "--min-real-time-factor", "1e9", "--junit", junit)
    assert ask("--task", "cartpole_balance", *words) == 1
    assert verdicts(capsys.readouterr().out)["real_time_factor"] == "FAIL"
    failed = [case for case in ET.parse(junit).iter("testcase") if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["real_time_factor"]
    assert "limit >= 1e+09" in str(failed[0].find("failure").get("message"))


def test_a_nan_reward_fails_the_finite_gate_and_is_named(tasks, tmp_path, capsys):
    junit = tmp_path / "sim.xml"
    assert ask("--task", f"{tasks}:NotFinite", *QUICK, "--junit", junit) == 1
    printed = capsys.readouterr().out
    assert verdicts(printed) == {
        "divergence": "PASS",
        "finite": "FAIL",
        "real_time_factor": "PASS",
        "survival": "SKIP",
        "deterministic": "SKIP",
    }
    assert "'upright' is not finite" in printed
    assert "checksum sha256:none" in printed
    cases = {case.get("name"): case for case in ET.parse(junit).iter("testcase")}
    assert "'upright'" in str(cases["finite"].find("failure").get("message"))


def test_a_nan_reward_found_by_check_on_a_gpu_fails_the_finite_gate_and_is_named(tasks, monkeypatch, capsys):
    make = sim.make_learner_env
    monkeypatch.setattr(sim, "make_learner_env", lambda run: unread(make(run)))
    assert ask("--task", f"{tasks}:NotFinite", *QUICK) == 1
    printed = capsys.readouterr().out
    assert "FAIL finite" in printed
    assert "reward 'upright' was not finite" in printed
    assert "8 robots, 9 of 30 steps" in printed


def test_without_a_finite_step_the_real_time_factor_is_skipped(tasks, monkeypatch, capsys):
    tasks.write_text(tasks.read_text().replace("> 0.19", "> 0.0"))
    make = sim.make_learner_env
    monkeypatch.setattr(sim, "make_learner_env", lambda run: unread(make(run)))
    assert ask("--task", f"{tasks}:NotFinite", *QUICK) == 1
    assert verdicts(capsys.readouterr().out)["real_time_factor"] == "SKIP"


def test_dropped_contacts_end_the_simulation_with_exit_code_4_and_name_the_setting(monkeypatch, capsys):
    pytest.importorskip("mujoco_warp")
    make = sim.make_learner_env
    monkeypatch.setattr(sim, "make_learner_env", lambda run: unread(make(run)))
    words = ("--backend", "mujoco_warp", "device=cpu", "backend.nconmax=3", *QUICK)
    assert ask("--task", "humanoid_walk", *words) == 4
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if not line.startswith("compiling ")]  # kernels that are not cached
    assert "raise backend.nconmax, now 3" in error


def test_diverged_steps_are_counted_and_fail_the_divergence_gate(tasks, capsys):
    assert ask("--task", f"{tasks}:Explodes", "--steps", 3, "--num-envs", 4, "--min-real-time-factor", 0) == 1
    line = next(x for x in capsys.readouterr().out.splitlines() if "divergence" in x)
    assert line.split()[:3] == ["FAIL", "divergence", "12"]  # 4 environments times 3 steps


def test_unseeded_random_numbers_fail_the_deterministic_gate(tasks, capsys):
    assert ask("--task", f"{tasks}:Unseeded", *QUICK) == 1
    assert verdicts(capsys.readouterr().out)["deterministic"] == "FAIL"


def test_a_trained_policy_is_simulated_in_its_task_and_must_survive(trained, capsys):
    words = ("--policy", trained, "--steps", 150, "--num-envs", 8, "--min-real-time-factor", 0)
    assert ask(*words, "task.start_angle=0.6") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("cartpole_balance on mujoco: 8 robots, 150 of 150 steps")
    assert verdicts(printed)["survival"] == "FAIL"
    assert verdicts(printed)["deterministic"] == "PASS"
    assert ask(*words, "--min-survival", 0) == 0


def test_survival_is_the_share_of_environments_that_never_fell(trained, capsys):
    # In eight steps from upright, no pole can fall, whatever the policy does.
    assert (
        ask("--policy", trained, "--task", "cartpole_balance", "--steps", 8, *QUICK[2:], "--min-survival", 1)
        == 0
    )
    assert "survival          1.000" in capsys.readouterr().out


def test_the_deterministic_gate_names_both_checksums_where_they_differ():
    first = Outcome(steps=9, simulated=1, seconds=0.5, early_checksum="a" * 64, device="cpu")
    again = Outcome(steps=9, early_checksum="b" * 64, device="cpu")
    gate = judge(first, again, 1.0, None)[-1]
    assert (gate.name, gate.passed) == ("deterministic", False)
    assert "aaaaaaaaaaaa" in gate.why
    assert "bbbbbbbbbbbb" in gate.why


def test_on_a_gpu_the_deterministic_gate_is_skipped():
    done = Outcome(steps=100, simulated=2.0, seconds=1.0, survival=0.95, device="cuda")
    gates = judge(done, None, 2.0, 0.9)
    assert [gate.passed for gate in gates] == [True, True, True, True, None]
    assert [gate.passed for gate in judge(done, None, 2.1, 0.96)] == [True, True, False, False, None]


def test_gates_without_a_single_step():
    gates = judge(Outcome(problem="reward 'alive' is not finite"), None, 1.0, 0.9)
    assert [gate.verdict for gate in gates] == ["PASS", "FAIL", "SKIP", "SKIP", "SKIP"]


def test_the_report_is_valid_xml_for_any_text():
    nasty = 'a<b>&"c"]]>\x00\x1b[31m\ud800\uffff and ünïcode'
    report = junit_xml(
        "robolearn sim", [Group(nasty, [Check("finite", False, "no", "yes", nasty)], {"policy": nasty}, 1.0)]
    )
    failure = ET.fromstring(report).find("testsuite/testcase/failure")
    assert failure is not None
    assert 'a<b>&"c"]]>' in str(failure.get("message"))
    assert "ünïcode" in str(failure.text)
    assert "\\ud800" in str(failure.text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--task"),
        (["--task", "cartpole_balanc"], "did you mean cartpole_balance"),
        (["--task", "cartpole_balance", "--policy", "zeros"], "did you mean zero"),
        (["--task", "cartpole_balance", "--policy", "runs/none"], "runs/none"),
        (["--task", "cartpole_balance", "--policy", "pretrained:none"], "pretrained"),
        (["--task", "cartpole_balance", "--steps", "0"], "--steps"),
        (["--task", "cartpole_balance", "--seed", "5000000000"], "seed"),
        (["--task", "cartpole_balance", "--backend", "gazebo"], "gazebo"),
        (["--task", "cartpole_balance", "--min-survival", "1.1"], "--min-survival"),
        (["--task", "cartpole_balance", "--min-real-time-factor", "nan"], "--min-real-time-factor"),
        (["--task", "cartpole_balance", "task.start_angl=0"], "did you mean task.start_angle"),
        (["--task", "cartpole_balance", "--junit", "taken/sim.xml"], "not a folder"),
    ],
)
def test_bad_input_is_exit_code_2_with_one_line_and_writes_nothing(
    words, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("mine")
    report = [] if "--junit" in words else ["--junit", "sim.xml"]
    assert ask(*words, *report) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
