"""`robolearn sim --suite`: suites, gates, baselines, reports, and the regressions that a suite must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import junitparser
import numpy as np
import pytest
import xmlschema

from robolearn.cli import main
from robolearn.commands.suite import baseline, output, spec
from robolearn.commands.suite.case import Case, Outcome
from robolearn.commands.suite.gates import Gate, Verdict
from robolearn.commands.suite.suite import judge, run_suite, worst
from robolearn.errors import ConfigError

SCHEMA = Path(__file__).with_name("junit.xsd")

CARTPOLE = """
schema: 1
name: cart
defaults: {policy: zero, task: cartpole_balance, episodes: 16, seconds: 1, pushes: []}
scenarios:
  - name: rest
    gates: {survival: ">= 0"}
"""


def suite(folder: Path, text: str = CARTPOLE, name: str = "suite.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_run_whose_task_comes_from_a_file_is_simulated_where_the_scenario_names_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from robolearn.tasks.cartpole import CartpoleBalance\n\nclass Mine(CartpoleBalance):\n    pass\n"
    )
    assert main(["train", "task=mine.py:Mine", "num_envs=16", "max_iterations=1", "output=run"]) == 0
    named = CARTPOLE.replace("zero, task: cartpole_balance", "run, task: mine.py:Mine")
    assert main(["sim", "--suite", str(suite(tmp_path, named))]) == 0
    capsys.readouterr()
    assert main(["sim", "--suite", str(suite(tmp_path, named.replace(", task: mine.py:Mine", "")))]) == 2
    assert "mine.py:Mine" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("before", "after", "offender"),
    [
        ("schema: 1", "schema: 9", "schema"),
        ("name: rest", "name: 7", "name"),
        ("task: cartpole_balance, ", "", "task"),
        ("policy: zero", "polcy: zero", "polcy"),
        ("episodes: 16", "episodes: 0", "episodes"),
        ("episodes: 16", "episodes: true", "episodes"),
        ("seconds: 1", "seconds: -1", "seconds"),
        ("seconds: 1", "terrain: stairs", "terrain"),
        ("seconds: 1", "backends: [mujocco]", "mujocco"),
        ("seconds: 1", "backends: [mujoco, mujoco]", "mujoco"),
        ("seconds: 1", "settings: [seed=3]", "seed=3"),
        ("seconds: 1", "seeds: []", "seeds"),
        ("seconds: 1", "seeds: [1, 1]", "seeds"),
        ("seconds: 1", "commands: {forward: 1, 1: 2}", "commands"),
        ('">= 0"', '"> 0"', "survival"),
        ('">= 0"', '"1 .. 0"', "survival"),
        ('">= 0"', '">= nan"', "survival"),
        ('">= 0"', "0.5", "survival"),
        ("scenarios:\n  - name: rest\n    gates", "scenarios: []\ngates", "gates"),
        ("CARTPOLE", "CARTPOLE", ""),
    ],
)
def test_an_invalid_suite_is_refused_by_its_place(tmp_path, before, after, offender) -> None:
    if not offender:
        assert spec.read(suite(tmp_path)).scenarios[0].name == "rest"
        return
    text = CARTPOLE.replace(before, after)
    assert text != CARTPOLE
    with pytest.raises(ConfigError, match=offender):
        spec.read(suite(tmp_path, text))


@pytest.mark.parametrize(
    "damage", ["schema: [1", "\x00", "- a\n- b", "a: &x 1\nb: *x", "!!python/object:os.system x"]
)
def test_a_corrupted_file_is_one_line_and_exit_code_2(tmp_path, capsys, damage) -> None:
    path = suite(tmp_path, damage)
    assert main(["sim", "--suite", str(path), "--junit", str(tmp_path / "out.xml")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == ["suite.yaml"]


def test_names_of_scenarios_must_differ(tmp_path) -> None:
    with pytest.raises(ConfigError, match="rest"):
        spec.read(suite(tmp_path, CARTPOLE + '  - {name: rest, gates: {survival: ">= 0"}}\n'))


def test_a_scenario_overrides_the_defaults_and_adds_to_gates_and_settings(tmp_path) -> None:
    text = CARTPOLE.replace("pushes: []", 'pushes: [], settings: [a=1], gates: {torque: "<= 1"}') + (
        '  - {name: other, episodes: 3, settings: [b=2], gates: {survival: ">= 0.5"}}\n'
    )
    one, two = spec.read(suite(tmp_path, text)).scenarios
    assert (one.episodes, two.episodes, two.num_envs) == (16, 3, 3)
    assert two.settings[:2] == ("a=1", "b=2")
    assert [gate.measure for gate in two.gates] == ["torque", "survival"]


# ---------------------------------------------------------------------------------------- gates


@pytest.mark.parametrize(
    ("stated", "value", "passes"),
    [
        (">= 0.95", 0.95, True),
        (">= 0.95", 0.9499, False),
        ("<= 0.2", 0.2, True),
        ("<= 0.2", 0.21, False),
        ("1 .. 3", 1.0, True),
        ("1 .. 3", 3.1, False),
        ({"min": 1}, 0.5, False),
        ({"max": 1}, 0.5, True),
        (">= 0", float("nan"), False),
    ],
)
def test_a_gate_passes_within_its_range(stated, value, passes) -> None:
    assert Gate.of("torque", stated, "here").passes(value) is passes


def outcome(**columns: list[float]) -> Outcome:
    count = len(next(iter(columns.values())))
    marks = np.arange(count)
    return Outcome(
        {name: np.array(values, float) for name, values in columns.items()},
        seeds=np.ones(count, np.int64),
        envs=marks,
        ends=10 * (marks + 1),
        seconds=2.0,
        simulated=8.0,
    )


def scenario(tmp_path: Path, gates: str) -> spec.Scenario:
    return spec.read(suite(tmp_path, CARTPOLE.replace('survival: ">= 0"', gates))).scenarios[0]


def test_gates_judge_the_mean_over_the_episodes_and_the_speed_of_the_run(tmp_path) -> None:
    case = scenario(tmp_path, 'survival: ">= 0.75", torque: "<= 0.3", real_time_factor: ">= 4.5"')
    verdicts = {
        v.name: v for v in judge(case, "mujoco", outcome(survival=[1, 1, 1, 0], torque=[0.2, 0.2, 0.3, 0.7]))
    }
    assert verdicts["survival"].passed is True
    assert verdicts["torque"].passed is False  # 0.35
    assert verdicts["torque"].value == "0.35"
    assert verdicts["real_time_factor"].passed is False  # 8 s in 2 s
    assert verdicts["finite"].passed is verdicts["divergence"].passed is True


def test_a_value_that_is_not_finite_fails_and_the_other_gates_are_not_judged(tmp_path) -> None:
    seen = outcome(survival=[1.0])
    seen.problem, seen.problem_at = "the policy's action is not finite", (1, 3, 17)
    case = scenario(tmp_path, 'survival: ">= 0.75"')
    verdicts = judge(case, "mujoco", seen)
    assert [(v.name, v.passed) for v in verdicts] == [
        ("finite", False),
        ("divergence", True),
        ("survival", None),
    ]
    result = output.Result(Case(case, "mujoco"), seen, verdicts, [])
    assert worst(result) == (1, 3, 18, seen.problem)


def test_the_worst_episode_is_the_earliest_fall_or_the_largest_excess(tmp_path) -> None:
    seen = outcome(survival=[1, 0, 0, 1], torque=[0.1, 0.2, 0.9, 0.3])
    for gates, env in (('survival: ">= 0.9"', 1), ('torque: "<= 0.1"', 2), ('torque: ">= 0.8"', 0)):
        case = scenario(tmp_path, gates)
        result = output.Result(Case(case, "mujoco"), seen, judge(case, "mujoco", seen), [])
        found = worst(result)
        assert found is not None
        assert found[:3] == (1, env, 10 * (env + 1))


def test_an_unknown_gate_is_named_before_anything_is_simulated(tmp_path, capsys) -> None:
    path = suite(tmp_path, CARTPOLE.replace("survival", "survivall"))
    assert main(["sim", "--suite", str(path), "--junit", str(tmp_path / "o" / "out.xml")]) == 2
    said = capsys.readouterr().err
    assert "'survivall'" in said
    assert "did you mean survival" in said
    assert not (tmp_path / "o").exists()


# ---------------------------------------------------------------------------------------- baselines


def test_a_baseline_holds_means_and_intervals_over_the_episodes() -> None:
    found = baseline.recorded(np.array([1.0, 2.0, 3.0, 4.0, np.nan]))
    assert found is not None
    assert (found.mean, found.count) == (2.5, 4)
    assert found.std == pytest.approx(1.29099, abs=1e-5)  # sqrt(5 / 3)
    assert 1.0 < found.low < 2.5 < found.high < 4.0
    assert baseline.recorded(np.array([np.nan])) is None


def test_shares_are_compared_by_fishers_exact_test() -> None:
    def share(survived: int) -> baseline.Recorded:
        return baseline.Recorded(survived / 10, 0, 1, 0.1, 10)

    # 10 of 10 before, 4 of 10 now: 10! / (4! 6!) of 20! / (14! 6!) = 210 / 38760 arrangements put all 6 falls here.
    assert baseline.worse("survival", share(10), share(4), 1) == pytest.approx(210 / 38760, rel=1e-6)
    assert baseline.worse("survival", share(4), share(10), 1) == pytest.approx(1.0)


def test_means_are_compared_by_welchs_test_in_the_direction_that_is_worse() -> None:
    before, now = baseline.Recorded(1.0, 0, 2, 0.5, 25), baseline.Recorded(1.4, 0, 2, 0.5, 25)
    # t = 0.4 / sqrt(2 * 0.25 / 25) = 2.8284 with 48 degrees of freedom: p = 0.0034 (one-sided).
    assert baseline.worse("torque", before, now, -1) == pytest.approx(0.00340, abs=1e-4)
    assert baseline.worse("return", before, now, 1) == pytest.approx(1 - 0.00340, abs=1e-4)


def test_a_change_within_the_tolerance_never_fails_however_certain() -> None:
    rng = np.random.default_rng(1)
    before = {"torque": 1.0 + 1e-4 * rng.standard_normal(64)}
    entry = baseline.entry("f", before)
    for change, passed in ((0.01, True), (0.03, False), (-0.5, True)):
        now = {"torque": before["torque"] + change}
        (verdict,) = baseline.compare("s", "b", entry, now, 1)
        assert verdict.passed is passed


def test_the_level_is_shared_by_all_comparisons_of_a_suite() -> None:
    values = np.tile([0.5, 1.5], 32)
    entry = baseline.entry("f", {"torque": values})
    # +0.25 with a spread of 0.504 over 64 episodes each: t = 2.81, p = 0.0029.
    alone = baseline.compare("s", "b", entry, {"torque": values + 0.25}, 1)
    many = baseline.compare("s", "b", entry, {"torque": values + 0.25}, 100)
    assert (alone[0].passed, many[0].passed) == (False, True)


def test_unchanged_policies_rarely_fail(tmp_path) -> None:
    """1000 suites of 20 comparisons of skewed values: the stated rate is 1 %, so 10 are expected; 25 are 4.7 sigma."""
    rng = np.random.default_rng(3)
    failed = 0
    for _ in range(1000):
        before, now = rng.gamma(2.0, 1.0, (2, 20, 64))
        m0, m1 = before.mean(axis=1), now.mean(axis=1)
        s0, s1 = before.std(axis=1, ddof=1), now.std(axis=1, ddof=1)
        ps = [
            baseline.worse("torque", baseline.Recorded(a, 0, 0, s, 64), baseline.Recorded(b, 0, 0, t, 64), -1)
            for a, b, s, t in zip(m0, m1, s0, s1, strict=True)
        ]
        failed += min(ps) < baseline.ALPHA / 20
    assert failed <= 25


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"schema": 2, "cases": {}}',
        '{"schema": 1, "cases": {"a": {"scenario": "x", "measures": {"t": {}}}}}',
    ],
)
def test_a_damaged_baseline_is_refused_by_name(tmp_path, damage) -> None:
    path = tmp_path / "suite.baseline.json"
    path.write_text(damage)
    with pytest.raises(ConfigError, match=r"suite\.baseline\.json"):
        baseline.read(path)


# ---------------------------------------------------------------------------------------- reports


def results(tmp_path: Path) -> list[output.Result]:
    case = scenario(tmp_path, 'survival: ">= 0.9"')
    good, bad = outcome(survival=[1, 1]), outcome(survival=[1, 0])
    odd = Verdict("sur_vival", False, "0.5", ">= 0.9", "bell \x07 & <tag>", "re|st <b>", "mu*joco")
    skipped = Verdict("available", None, "-", "-", "not installed", "rest", "isaaclab")
    return [
        output.Result(Case(case, "mujoco"), good, judge(case, "mujoco", good), []),
        output.Result(Case(case, "mujoco_warp"), bad, [*judge(case, "mujoco_warp", bad), odd], ["x.replay"]),
        output.Result(Case(case, "isaaclab"), Outcome(), [skipped], []),
    ]


def test_junit_is_read_back_with_a_test_case_for_each_scenario_and_gate(tmp_path) -> None:
    text = output.junit("robolearn.cart", results(tmp_path), {"robolearn": "0"})
    assert xmlschema.XMLSchema(SCHEMA).is_valid(text.decode())
    path = tmp_path / "out.xml"
    path.write_bytes(text)
    report = junitparser.JUnitXml.fromfile(str(path))
    assert (report.tests, report.failures, report.errors) == (8, 2, 0)
    assert sum(each.skipped for each in report) == 1
    cases = [case for each in report for case in each]
    assert [case.name for case in cases][:3] == [
        "finite [mujoco]",
        "divergence [mujoco]",
        "survival [mujoco]",
    ]
    assert cases[5].result[0].message == "rest on mujoco_warp: survival is 0.5, limit >= 0.9"
    assert isinstance(cases[7].result[0], junitparser.Skipped)


def test_the_summary_escapes_what_markdown_would_read(tmp_path) -> None:
    text = output.markdown("cart", results(tmp_path), 3.0)
    assert "1 of 3 failed" in text
    rows = [line for line in text.splitlines() if line.startswith("| re\\|st")]
    assert rows == ["| re\\|st &lt;b> | mu\\*joco | sur\\_vival | 0.5 | >= 0.9 | bell \\\\x07 & &lt;tag> |"]


def test_a_passing_suite_writes_junit_with_json_beside_it_and_appends_a_summary(
    tmp_path, capsys, monkeypatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.chdir(tmp_path)
    assert main(["sim", "--suite", str(suite(tmp_path)), "--junit", "out.xml", "--jobs", "1"]) == 0
    assert xmlschema.XMLSchema(SCHEMA).is_valid("out.xml")
    found = json.loads(Path("out.json").read_text())
    assert found["passed"] is True
    assert found["cases"][0]["episodes"] == 16
    assert summary.read_text().startswith("before\n### RoboLearn suite cart: all 1 passed")
    assert "no baseline" in capsys.readouterr().out
    assert not (tmp_path / "sim_failures").exists()


@pytest.mark.parametrize("word", ["backend=mujoco_warp", "seed=9", "num_envs=3", "task=x", "device=cpu"])
def test_settings_that_scenarios_state_are_refused_on_the_command_line(tmp_path, capsys, word) -> None:
    assert main(["sim", "--suite", str(suite(tmp_path)), word]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json=x.json", "--only=rest", "--jobs=2", "--summary=x.md"])
def test_options_of_a_suite_are_refused_without_one(capsys, option) -> None:
    assert main(["sim", "--task", "cartpole_balance", *option.split("=")]) == 2
    assert option.split("=")[0] in capsys.readouterr().err


def test_scenarios_whose_files_would_collide_are_refused(tmp_path) -> None:
    both = '  - {name: a b, gates: {survival: ">= 0"}}\n  - {name: A_b, gates: {survival: ">= 0"}}\n'
    with pytest.raises(ConfigError, match="A_b"):
        spec.read(suite(tmp_path, CARTPOLE + both))


def test_a_stated_limit_of_divergence_replaces_that_of_0(tmp_path) -> None:
    seen = outcome(survival=[1.0])
    seen.diverged = 3
    for gates, passed in (
        ('survival: ">= 0"', False),
        ('divergence: "<= 3"', True),
        ('divergence: "<= 2"', False),
    ):
        verdicts = {v.name: v.passed for v in judge(scenario(tmp_path, gates), "mujoco", seen)}
        assert verdicts["divergence"] is passed


def test_a_scenario_without_an_entry_in_the_baseline_fails_and_a_damaged_one_is_rewritten(tmp_path) -> None:
    path = suite(tmp_path)
    (tmp_path / "suite.baseline.json").write_text("damaged")
    assert run_suite(path, jobs=1, update_baseline=True)
    assert run_suite(path, jobs=1)
    path.write_text(CARTPOLE.replace("name: rest", "name: renamed"))
    assert not run_suite(path, jobs=1, json=tmp_path / "out.json", failures=tmp_path / "f")
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [gate["gate"] for gate in case["gates"] if gate["verdict"] == "FAIL"] == ["baseline"]


def test_a_baseline_needs_eight_episodes(tmp_path, capsys) -> None:
    path = suite(tmp_path, CARTPOLE.replace("episodes: 16", "episodes: 7"))
    assert main(["sim", "--suite", str(path), "--update-baseline"]) == 2
    assert "rest" in capsys.readouterr().err


def test_a_measure_that_lost_its_values_fails_and_one_that_never_had_enough_is_skipped() -> None:
    values, few = np.full(16, 0.5), np.array([0.5] * 4 + [np.nan] * 12)
    entry = baseline.entry("f", {"torque": values, "power": few})
    verdicts = {v.name: v.passed for v in baseline.compare("s", "b", entry, {"torque": few, "power": few}, 1)}
    assert verdicts == {"baseline torque": False, "baseline power": None}


@pytest.mark.parametrize("option", ["--task=x", "--policy=random", "--backend=mujoco", "--steps=5"])
def test_options_of_a_single_simulation_are_refused_with_a_suite(tmp_path, capsys, option) -> None:
    assert main(["sim", "--suite", str(suite(tmp_path)), *option.split("=")]) == 2
    assert option.split("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "offender", "code"),
    [
        (("policy: zero", "policy: runs/nowhere"), "nowhere", 2),
        (("task: cartpole_balance", "task: cartpole_blance"), "cartpole_blance", 2),
        (("pushes: []", "pushes: [{at: 0.5, speed: 1}]"), "cartpole", 2),
        (("pushes: []", "pushes: [{at: 1, speed: 1}]"), "pushes", 2),
        (("pushes: []", "commands: {forward: 1}"), "forward", 2),
        (("pushes: []", "settings: [task.nothing=1]"), "nothing", 2),
    ],
)
def test_what_cannot_be_simulated_is_named_before_anything_is_written(
    tmp_path, capsys, change, offender, code
) -> None:
    path = suite(tmp_path, CARTPOLE.replace(*change))
    assert main(["sim", "--suite", str(path), "--junit", str(tmp_path / "out" / "o.xml")]) == code
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert offender in said[0]
    assert os.listdir(tmp_path) == ["suite.yaml"]


def test_a_backend_that_is_not_installed_is_exit_code_3_or_skipped(tmp_path, capsys) -> None:
    from robolearn.config import registry

    if not registry.entries("backends")["isaaclab"].hint:
        pytest.skip("Isaac Lab is installed")
    path = suite(tmp_path, CARTPOLE.replace("pushes: []", "backends: [mujoco, isaaclab]"))
    assert main(["sim", "--suite", str(path)]) == 3
    assert "isaaclab" in capsys.readouterr().err
    assert main(["sim", "--suite", str(path), "--skip-missing", "--jobs", "1"]) == 0
    assert "SKIP" in capsys.readouterr().out


def test_a_suite_of_which_nothing_can_be_simulated_here_does_not_pass(tmp_path, capsys) -> None:
    from robolearn.config import registry

    if not registry.entries("backends")["isaaclab"].hint:
        pytest.skip("Isaac Lab is installed")
    path = suite(tmp_path, CARTPOLE.replace("pushes: []", "backends: [isaaclab]"))
    assert main(["sim", "--suite", str(path), "--skip-missing"]) == 3
    assert "isaaclab" in capsys.readouterr().err


def test_what_comes_after_the_end_is_refused_in_every_scenario(tmp_path, capsys) -> None:
    walking = (
        "schema: 1\nname: walk\ndefaults: {policy: zero, task: humanoid_walk, episodes: 2, seconds: 1}\n"
    )
    for late in ("pushes: [{at: 1.5, speed: 1}]", "commands: [{at: 0, forward: 1}, {at: 1.5, forward: 0.5}]"):
        known = late.replace("1.5", "0.5")
        path = suite(
            tmp_path, f"{walking}scenarios:\n  - {{name: early, {known}}}\n  - {{name: late, {late}}}\n"
        )
        assert main(["sim", "--suite", str(path)]) == 2
        assert "late" in capsys.readouterr().err


def test_only_names_a_scenario(tmp_path, capsys) -> None:
    assert main(["sim", "--suite", str(suite(tmp_path)), "--only", "resst"]) == 2
    assert "rest" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path) -> None:
    """A file size limit of the kernel stands in for the full disk: the write fails in the same way."""
    code = (
        "import resource, signal, sys\n"
        "from robolearn.commands.suite import output\n"
        "from robolearn.commands.exits import exit_code\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "sys.exit(exit_code(lambda: output.save(Path(sys.argv[1]), b'x' * 5000)))\n"
    )
    path = tmp_path / "out.xml"
    path.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == ["out.xml"]
    assert path.read_text() == "old"


def test_a_worker_that_dies_fails_its_case_and_the_report_is_written(tmp_path, monkeypatch) -> None:
    killer = tmp_path / "killer.py"
    killer.write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from robolearn.tasks.cartpole import CartpoleBalance\n\n"
        "@dataclass\n"
        "class Killer(CartpoleBalance):\n"
        "    '''Ends its process in the first step of a worker.'''\n\n"
        "    def advance(self, state, ctx):\n"
        "        if len(state.diverged) > 1:\n"
        "            os._exit(9)\n"
        "        return super().advance(state, ctx)\n"
    )
    path = suite(tmp_path, CARTPOLE.replace("task: cartpole_balance", f"task: {killer}:Killer"))
    assert not run_suite(path, json=tmp_path / "out.json", jobs=1, failures=tmp_path / "f")
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [gate["verdict"] for gate in case["gates"]] == ["FAIL"]
    assert "died" in case["gates"][0]["why"]


def test_a_baseline_is_not_recorded_with_other_settings(tmp_path, capsys) -> None:
    assert main(["sim", "--suite", str(suite(tmp_path)), "--update-baseline", "task.episode_length_s=2"]) == 2
    assert "task.episode_length_s=2" in capsys.readouterr().err


def test_the_schema_refuses_a_report_without_names() -> None:
    root = ET.fromstring('<testsuites><testsuite tests="1"><testcase/></testsuite></testsuites>')
    assert not xmlschema.XMLSchema(SCHEMA).is_valid(ET.tostring(root).decode())


def test_a_latency_gate_needs_a_bundle(tmp_path, capsys) -> None:
    path = suite(tmp_path, CARTPOLE.replace('survival: ">= 0"', 'latency_ms: "<= 1"'))
    assert main(["sim", "--suite", str(path), "--jobs", "1"]) == 2
    assert "latency_ms" in capsys.readouterr().err
