"""REPORT.md and latency.png of results made by hand: required sentences, and forbidden ones."""

from __future__ import annotations

import copy
import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from robolearn import config
from robolearn.core.contract import contract_of
from robolearn.export import report as reports
from robolearn.export.bundle import contract_entry, sensor_entries, state_entries
from robolearn.export.closed_loop import DelayResult, Gap
from robolearn.export.controller import Controller
from robolearn.export.latency.latency import Cost, Measurement, decide, model
from robolearn.export.onnx.parity import Parity
from robolearn.export.report import report, write_report
from robolearn.export.robot_model import base_facts, joint_facts
from robolearn.export.target import load
from robolearn.runtime.measure import statistics
from robolearn.runtime.picture import draw_latency
from robolearn.simulation import sim2sim
from robolearn.tasks.mdp.observations import projected_gravity
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.training.build import make_env
from tests.simulation.test_sim2sim import side

THOR = "NVIDIA Jetson AGX Thor Developer Kit"
JETSONS = ["jetson-thor", "jetson-thor-t4000", "jetson-agx-orin", "jetson-orin-nx", "jetson-orin-nano"]
SMALL = Cost(50_000, 200_000, 100_000, kernels=4, precision="fp32", activation_bytes=3_000)
HUGE = Cost(10**9, 4 * 10**9, 2 * 10**9, kernels=4, precision="fp32", activation_bytes=3_000)
GAP = Gap(
    mean=-0.00001, low=-0.00007, high=0.00005, starts=512, seconds=10.0, trained_return=12.0,
    bundle_return=11.9999, trained_survival=508 / 512, bundle_survival=507 / 512, episode=20.0,
)  # fmt: skip
PARITY = Parity(9.5e-7, 7.2e-7, 7.6e-6, observations=4096, resets=32, limit=1e-5, cosine=0.999999)
BUDGET = {"p50": 1.0, "p99": 2.0, "max": 5.0, "jitter": 1.0}
GOLDEN = {
    "episodes": 4, "steps": 320, "events": {"stop": 3, "lean": 0},
    "branches": {"ways": 4, "taken": 3, "not_taken": ["Where clock: false"]},
}  # fmt: skip
NO_TENSORRT = "TensorRT's Python module cannot be imported (no). On a Jetson: apt install x; elsewhere: pip"


def trained(name: str, *words: str) -> Any:
    """A task as exported: `config`, `contract` and the `ranges` of its commands."""
    settings = config.resolve([f"task={name}", *words])
    env = make_env(settings, num_envs=1)
    try:
        contract = contract_entry(contract_of(env), env.task.items("policy"))
        controller = Controller(
            env, nn.Linear(sum(i["width"] for i in contract["observations"]), env.num_actions), {}
        )
        tables = {
            "sensors": sensor_entries(controller),
            "state": state_entries(controller),
            "targets": {"depend_on": ["action"], "affine": True},
            "base": base_facts(env.robot),
            "joints": joint_facts(env.robot),
            "golden": GOLDEN,
        }
    finally:
        env.close()
    commands = settings.task.commands
    ranges = {name: list(getattr(commands, name)) for name in contract["command"]}
    return SimpleNamespace(config=settings, contract=contract, ranges=ranges, tables=tables)


@pytest.fixture(scope="module")
def humanoid() -> Any:
    pushes = ("speed=[0,0.5]", "seconds=[4,8]", "box=[0.25,0.25,0.2]", "turn=[0,0,0.39]")
    return trained("humanoid_walk", *(f"task.pushes.{word}" for word in pushes))


@pytest.fixture(scope="module")
def cartpole() -> Any:
    return trained("cartpole_balance")


def result(runtime: str = "onnxruntime", ms: Any = 0.2) -> dict[str, Any]:
    """A result of `measure` for steps of `ms`, a number or a list [ms]."""
    took = np.full(500, ms) if np.isscalar(ms) else np.asarray(ms, float)
    took = took + 1e-6 * np.arange(len(took))
    one = statistics(took / 1e3)
    paced = one | {"rate_hz": 50.0}
    times = {"paced": paced, "network": paced, "hot": one, "late": one}
    return {"runtime": runtime, **times, "paced_ms": took.tolist()}


def made(policy: Any, target: str = "jetson-thor", board: str | None = None, **changes: Any) -> Any:
    """An Export as the stages make it. `board`: name of this machine."""
    wanted, precision = load(target), changes.pop("precision", "fp32")
    measured = [m | {"board": board} for m in changes.pop("measured", [])]
    estimates = model(wanted, dataclasses.replace(changes.pop("cost", SMALL), precision=precision))
    best, verdict = decide(wanted, 50.0, estimates, [Measurement.read(m) for m in measured])
    run = {"name": "runs/walk", "iteration": 400, "seed": 1, "overrides": [], **changes.pop("run", {})}
    checked = SimpleNamespace(
        found=SimpleNamespace(config=policy.config), trained=policy.config,
        target=wanted, board=board, on_target=wanted.any_machine or board is not None,
    )  # fmt: skip
    out = SimpleNamespace(
        checked=checked, graph="obs 1x72, actions 1x21", parity=PARITY, gap=GAP, verdict=verdict,
        golden={"onnxruntime": {"observations": 6e-8, "actions": 3e-7, "targets": 2e-7}},
        recommendation=best, estimates=estimates, measured=measured, engine=NO_TENSORRT, profiles={}, warnings=[],
        late=None, drawn=False, compared=[],
        manifest={
            "made_by": "robolearn 9.9", "contract": copy.deepcopy(policy.contract), "run": run,
            "command_ranges": policy.ranges,
            **copy.deepcopy(policy.tables),
            "controller": {
                "file": "controller.onnx", "precision": precision, "sha256": "0123456789abcdef" * 4,
                "inputs": {"quat": [1, 4], "command": [1, 3], "last_action_in": [1, 21]},
            },
        },
    )  # fmt: skip
    vars(out).update(changes)
    return out


def answer(text: str, question: str) -> str:
    """The answer to a question of `In short`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {question}")]
    return line.split(" | ")[1]


def section(text: str, title: str) -> str:
    return re.split(r"^## ", text.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.M)[0]


def test_the_order_of_the_sections(humanoid):
    titles = re.findall(r"^## (.*)", report(made(humanoid)), flags=re.M)
    first = "In short, What this does not show, Conditions in training, Before it moves"
    then = "What the robot must agree with, On the robot's computer, The same policy, Latency"
    assert titles == [*first.split(", "), *then.split(", "), "Appendix: figures of budget and model"]


def test_falls_with_late_joint_targets_are_counted_and_bold_where_many(humanoid):
    some = answer(
        report(made(humanoid, late=DelayResult(0.9 * GAP.bundle_return, 0.95))),
        "What if its joint targets arrive 20 ms",
    )
    assert (
        some
        == f"{round(0.05 * GAP.starts)} of {GAP.starts} starts fell (on time: {GAP.fell}); return -10.0 %"
    )
    all_of_them = answer(report(made(humanoid, late=DelayResult(float("nan"), 0.0))), "What if")
    assert all_of_them.startswith(f"**{GAP.starts} of {GAP.starts} starts fell")
    assert "return" not in all_of_them
    assert "What if" not in report(made(humanoid))


@pytest.mark.parametrize("name", JETSONS)
def test_a_model_never_answers_yes_and_its_no_names_the_model(humanoid, name):
    out = made(humanoid, target=name)
    assert out.verdict.fits is True
    said = answer(report(out), "Is it fast enough")
    assert said.startswith("**not known**: a model with assumed figures predicts ")
    assert f"{out.estimates[-1].total_ms:.2f} of 1 ms (p50)" in said  # of ONNX Runtime, which is faster
    assert "yes" not in said
    over = answer(report(made(humanoid, target=name, cost=HUGE)), "Is it fast enough")
    assert over.startswith("**no**, predicts a model with assumed figures: ")


def test_a_measurement_on_the_target_answers_yes_or_no_with_times_over_the_budget_in_bold(humanoid):
    fast = report(made(humanoid, board=THOR, measured=[result(ms=0.2)]))
    assert answer(fast, "Is it fast enough") == (
        "**yes**: p50 0.200 of 1, p99 0.200 of 2, p99 - p50 0.000 of 1, max 0.200 of 5 ms"
    )
    assert "**measured on NVIDIA Jetson AGX Thor Developer Kit**" in fast
    # 500 steps of which one takes 7 ms: only the maximum is over.
    slow = report(made(humanoid, board=THOR, measured=[result(ms=[0.2] * 499 + [7.0])]))
    said = answer(slow, "Is it fast enough")
    assert said.startswith("**no**: p50 0.200 of 1, ")
    assert said.endswith("**max 7.000 of 5** ms")


def test_a_measurement_on_another_device_gives_no_answer(humanoid):
    text = report(made(humanoid, measured=[result()], run={"machine": "AMD EPYC, x86_64"}))
    assert answer(text, "Is it fast enough").startswith("**not known**")
    assert "Measured on AMD EPYC, x86_64, **not the export target**" in text
    assert "They say nothing about the export target" in text
    assert "**Nothing was measured on Jetson Thor" in text
    short = report(made(humanoid, target="host", measured=[result(ms=[0.2] * 50)]))
    assert "| **not known** | 50 control steps measured" in short


@pytest.mark.parametrize(("trained", "fell"), [(0.5, 256), (1.0, 0)])
def test_falls_are_counted_and_many_falls_are_a_bold_no(humanoid, trained, fell):
    text = report(made(humanoid))
    assert answer(text, "Does it stay up?") == "5 of 512 starts fell within 10 s (trained policy: 4)"
    assert "What counts as a fall: `fallen`, `body_below_ground`." in text
    gap = dataclasses.replace(GAP, bundle_survival=0.25, trained_survival=trained)
    said = answer(report(made(humanoid, gap=gap)), "Does it stay up?")
    assert said.startswith(f"**no**: 384 of 512 starts fell within 10 s (trained policy: {fell})")
    assert said.endswith("; the trained policy falls, too") == (trained < 0.9)


@pytest.mark.parametrize(
    ("starts", "seconds", "episode", "little"),
    # The last one: whole episodes of 5 s.
    [(512, 10.0, 20.0, False), (511, 10.0, 20.0, True), (512, 9.98, 20.0, True), (512, 5.0, 5.0, False)],
)
def test_few_or_short_starts_are_hardly_tested(humanoid, starts, seconds, episode, little):
    gap = dataclasses.replace(GAP, starts=starts, seconds=seconds, episode=episode)
    text = report(made(humanoid, gap=gap))
    for question in ("Does it control the robot", "Does it stay up?"):
        assert answer(text, question).startswith("**hardly tested**") == little, question
    if little:
        assert f"{starts} starts of {seconds:g} s; the default is 512 of 10 s" in text
        assert "**yes, in simulation**" not in text


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.00007, 0.00005, "within ±0.007 % of"),  # within 0.01 %
        (-0.004, 0.003, "within ±0.4 % of"),  # nearly symmetric
        (-0.004, 0.001, "-0.400 to +0.100 % off"),
        (0.0001, 0.0003, "+0.010 to +0.030 % off"),
        (0.0, 0.0, "within ±0.001 % of"),  # never ±0
        (-0.000071, 0.00005, "within ±0.008 % of"),  # rounded up: it is a bound
    ],
)
def test_a_nearly_symmetric_interval_is_one_bound(humanoid, low, high, said):
    gap = dataclasses.replace(GAP, low=low, high=high)
    assert f"return {said} the trained" in answer(report(made(humanoid, gap=gap)), "Does it control")


def test_the_report_states_the_origin_of_the_policy(humanoid):
    plain = report(made(humanoid)).splitlines()[2]
    assert plain.startswith("robolearn 9.9 exported `runs/walk`: iteration 400, seed 1; fp32 at 50 Hz;")
    assert "ONNX file `0123456789ab` (sha256)" in plain
    run = {"exported_at": "2026-01-31T10:00:00+01:00", "machine": "AMD EPYC", "versions": {"torch": "2.9"}}
    dated = report(made(humanoid, run=run)).splitlines()[2]
    assert "; 2026-01-31; AMD EPYC; torch 2.9; " in dated
    assert "settings other than the run's" not in report(made(humanoid))
    text = report(made(humanoid, run={"overrides": ["task.pushes.speed=[0,0]"]}))
    assert "**The closed loop ran with settings other than the run's: `task.pushes.speed=[0,0]`.**" in text


def test_a_bf16_report_says_that_it_needs_tensorrt(humanoid):
    text = report(made(humanoid, precision="bf16", golden={"torch": {"actions": 1e-3}}))
    assert "Needs TensorRT on the robot: ONNX Runtime has no bf16 products on a CPU." in text
    assert 'open_session(bundle, "tensorrt")' in text
    assert "In the export torch ran the network, not the runtime that the robot will use." in text
    assert "Smallest cosine: 0.999999." in text
    assert "Needs TensorRT" not in report(made(humanoid))
    assert "Smallest cosine" not in report(made(humanoid))


def test_no_line_says_pass_and_no_sentence_is_repeated(humanoid, cartpole):
    little = dataclasses.replace(GAP, starts=8, seconds=0.4, bundle_survival=0.0)
    there: dict[str, Any] = {"board": THOR, "measured": [result(), result("tensorrt", 0.4)], "engine": ""}
    here = {"measured": [result()]}
    kinds: list[dict[str, Any]] = [{}, {"cost": HUGE, "gap": little}, there, here, {"target": "host"}]
    kinds += [{"target": "host"} | here, {"precision": "bf16"}]
    for text in [report(made(policy, **kind)) for policy in (humanoid, cartpole) for kind in kinds]:
        assert not re.search("pass", text, flags=re.I)
        prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))
        sentences = [s.strip() for s in re.split(r"(?<=[.:;])\s", prose) if len(s) > 40]
        assert len(sentences) == len(set(sentences)), [s for s in sentences if sentences.count(s) > 1]


@pytest.mark.parametrize("measured", [[], [result()]])
def test_a_report_for_this_machine_gives_no_advice_about_a_jetson(humanoid, measured):
    text = report(made(humanoid, target="host", measured=measured))
    assert not re.search("Jetson|JetPack|On it:|On the robot:", text)
    assert "# HumanoidWalk on humanoid, for the machine it was exported on" in text
    assert "TensorRT's Python module cannot be imported (no)." in text
    assert len(re.findall("On it: |On the robot: ", report(made(humanoid)))) == 2


def test_randomization_in_training_is_stated_with_units(humanoid):
    said = section(report(made(humanoid)), "Conditions in training")
    for row in (
        "| sliding friction | 0.3 to 1.2 |",
        "| noise on `base_ang_vel`, uniform | ±0.1 rad/s |",
        "| noise on `projected_gravity`, uniform | ±0.02 |",
        "| noise on `joint_pos_rel`, uniform | ±0.01 rad |",
        "| pushes, every 4 to 8 s | the base's velocity jumps by 0 to 0.5 m/s, in any direction and by ±[0.25, ",
        ", in any direction and by ±[0.25, 0.25, 0.2] m/s (x, y, z) and by ±[0, 0, 0.39] rad/s (roll, pitch, yaw); ",
        "| command `forward` | -0.5 to 1 m/s |",
        "| time from reset to reset | at most 20 s |",
    ):
        assert row in said
    assert "Trained without randomized" not in said


def test_errors_of_sensors_and_parameters_that_do_not_vary_are_no_randomized_physics(humanoid, monkeypatch):
    ranges = {"imu_tilt": Randomized((0.0, 0.03)), "friction": Randomized((0.8, 0.8))}
    monkeypatch.setattr(humanoid.config.task, "randomize", ranges)
    assert "Trained without randomized physics" in section(report(made(humanoid)), "Conditions in training")


def test_ranges_are_those_of_training_not_of_the_closed_loop(humanoid):
    out = made(humanoid)
    still = [f"task.pushes.{part}" for part in ("speed=[0,0]", "box=[0,0,0]", "turn=[0,0,0]")]
    out.checked.found.config = config.resolve(["task=humanoid_walk", *still])
    text = report(out)
    assert "jumps by 0 to 0.5 m/s" in text
    assert "(roll, pitch, yaw); while training succeeded, up to 2.5 times of all this |" in text
    assert "| the same starts, under randomized physics |" in text


def test_a_range_that_grew_in_training_says_how_far_it_may_have_come(humanoid):
    out = made(humanoid)
    slow = ["task.curricula.commands.start=0.2", "task.curricula.commands.rise=0.2"]
    out.checked.trained = config.resolve(["task=humanoid_walk", *slow])
    said = section(report(out), "Conditions in training")
    assert (
        "| command `forward` | -0.5 to 1 m/s; at first 0.2 times of it; while training succeeded, up to 1 times"
        in said
    )
    assert "| sliding friction | 0.3 to 1.2 |" in said


@pytest.mark.parametrize("has_levels", [True, False])
def test_how_robots_came_to_other_rows_of_the_ground_is_stated(humanoid, has_levels, monkeypatch):
    out = made(humanoid)
    out.manifest["conditions"] = {"terrain": {"rough": {"share": 1.0, "roughness": [0.0, 0.1]}}}
    monkeypatch.setattr(type(humanoid.config.task), "has_levels", has_levels)
    text = report(out)
    assert ("`level_terrain`" in text) == has_levels
    assert ("another row in each episode" in text) != has_levels


def test_delays_are_stated(humanoid):
    out = made(humanoid)
    out.manifest["contract"]["action_delay"] = [0, 0]
    none = section(report(out), "Conditions in training")
    assert "**Trained without delays.**" in none
    assert "control steps" not in none
    out.manifest["contract"]["action_delay"] = [0, 2]
    some = section(report(out), "Conditions in training")
    assert "Trained without delays" not in some
    assert "| action delay | 0 to 2 control steps (0 to 40 ms) |" in some  # of 20 ms each
    assert "| observation delay | 0 control steps (0 ms) |" in some


def test_a_task_without_commands_pushes_and_noise_says_so(cartpole):
    text = report(made(cartpole))
    said = section(text, "Conditions in training")
    assert "**Trained without randomized physics, without sensor noise, without pushes.**" in said
    assert "command" not in said
    assert "| the same starts |" in text
    assert "gantry" not in text
    assert '"joint_vel": v}, [])' in text


def test_the_checks_by_hand_are_those_of_the_observations(humanoid, cartpole):
    said = section(report(made(humanoid)), "Before it moves")
    assert "nose 10 degrees down -> (+0.17, 0, -0.98); 10 degrees to the right -> (0, -0.17, -0.98)" in said
    assert (
        "`base_ang_vel`, columns 6 to 8, the newest of 3 samples: turning left: the third is positive" in said
    )
    assert all(word in said for word in ("ramp", "gantry", "command 0", "reset()", "emergency stop"))
    assert "`velocity_commands`, columns 213 to 215, the newest of 3 samples: equal to the command" in said
    past = (
        "base_ang_vel",
        "projected_gravity",
        "joint_pos_rel",
        "joint_vel_rel",
        "last_action",
        "velocity_commands",
    )
    kept = ", ".join(("last_action", *(f"past_{name}" for name in past), "started"))
    assert f"the runtime holds the old {kept}." in said
    other = section(report(made(cartpole)), "Before it moves")
    assert "`joint_pos_rel`, columns 0 to 1" in other
    assert not re.search("gravity|base_ang_vel|axes|command", other)
    out = made(humanoid)
    out.manifest["state"].append({"name": "h", "shape": [1, 1, 2], "reset": [[[0.0, 0.0]]]})
    assert f"the old {kept}, h." in report(out)


def test_the_signs_of_the_checks_equal_the_runtimes():
    # +10 degrees about y (left) lowers the nose, about x (forward) the right side.
    w, v = np.cos(np.radians(5)), np.sin(np.radians(5))
    nose, side = projected_gravity(torch.tensor([[w, 0, v, 0], [w, v, 0, 0]])).tolist()
    assert nose == pytest.approx([0.17, 0, -0.98], abs=0.005)
    assert side == pytest.approx([0, -0.17, -0.98], abs=0.005)


def test_the_table_has_every_actuator_with_its_limits(humanoid):
    said = section(report(made(humanoid)), "What the robot must agree with")
    assert said.count(" | position | ") == len(humanoid.contract["actions"]) == 21
    assert all(said.count(f"| {action['joint']} | position") == 1 for action in humanoid.contract["actions"])
    assert "| l_knee | position | 120 | 4 | 120 | 0.6 | 0.25 | 0.6 | -0.05 | 2.2 |" in said
    assert (
        "| kp [Nm/rad] | kd [Nm s/rad] | Effort [Nm] | Offset [rad] | Scale [rad] | Home [rad] | Lower [rad] |"
        in said
    )
    assert said.count("m for rad and N for Nm") == 1
    assert "The order of `joint_pos` and `joint_vel` is that of the actuators" in said


def test_joints_without_an_actuator_are_listed(cartpole):
    said = section(report(made(cartpole)), "What the robot must agree with")
    assert re.search(r"^\| slider \| force \| 0 \| 0 \| 100 \| 0 \| 20 \|", said, flags=re.M)
    assert "Scale [Nm]" in said
    assert "The order of `joint_pos` and `joint_vel` is slider, hinge." in said
    assert re.search(r"^\| hinge \| 0 \|", said, flags=re.M)


def test_only_a_measurement_on_the_target_recommends_a_runtime(humanoid):
    modelled = section(report(made(humanoid, measured=[result()])), "Latency")
    assert "Try first: **onnxruntime**; the model predicts tensorrt 0." in modelled
    assert "Recommended" not in modelled
    assert (
        "| onnxruntime | start delay (depends on the operating system; not compared with the budget) | 0.200 |"
        in modelled
    )
    both = [result(ms=0.5), result("tensorrt", 0.3)]
    assert "Recommended runtime: **tensorrt**." in report(made(humanoid, board=THOR, measured=both))


@pytest.mark.parametrize("name", [*JETSONS, "host"])
def test_the_appendix_holds_every_figure_with_mark_and_source(humanoid, name):
    out = made(humanoid, target=name)
    text = report(out)
    said = section(text, "Appendix: figures of budget and model")
    assert text.endswith(said)  # at the very end
    figures = dict(vars(out.checked.target.budget))
    for estimate in out.estimates:
        figures |= estimate.figures
        assert f"Model of {estimate.runtime} on " in said
    assert len(figures) >= 4 + 10 * (name != "host")
    for key, figure in figures.items():
        assert f"| `{key}` | {figure.value:g} | {figure.mark} | {figure.source} |" in said


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    def draw(measured: list[dict[str, Any]]) -> Any:
        """The axes that are drawn."""
        kept: list[Figure] = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
        draw_latency(tmp_path / "latency.png", measured, BUDGET, "measured on it")
        return kept[0].axes

    return draw


def test_the_axis_ends_at_the_control_period_and_the_budget_is_labelled_at_its_lines(drawn):
    (axes,) = drawn([result(ms=[*np.linspace(0.15, 0.2, 499), 3.0])])
    assert axes.get_xlim()[1] == pytest.approx(20.0)  # 50 Hz
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.2", "0.5", "1", "2", "5", "10", "20"]
    labels = [text.get_text() for text in axes.texts]
    assert labels == ["p50 budget\n1 ms", "p99 budget\n2 ms", "max budget\n5 ms"]
    assert axes.get_legend() is None
    assert re.fullmatch(r"onnxruntime, 500 steps: p50 0.17\d, p99 0.\d+, max 3.000 ms", axes.get_title())


def test_every_step_and_bar_is_inside_the_axes(drawn):
    times = [0.2] * 497 + [1.3, 6.0, 24.0]  # the last one takes longer than the period
    above, axes = drawn([result("tensorrt", 0.4), result(ms=times)])
    assert above.get_xlim() == axes.get_xlim()
    (bars,) = axes.patches
    counts, edges, _ = bars.get_data()
    assert counts.sum() == 500
    assert axes.get_xlim()[1] > edges[-1] * 0.999 > 24.0
    low, high = axes.get_ylim()
    # The bar of a single step has a height, and the labels fit above the tallest bar.
    assert axes.get_yscale() == "log"
    assert 0 < low < 1
    assert np.log(counts.max() / low) < 0.8 * np.log(high / low)


@pytest.mark.parametrize(("board", "title"), [(None, "not Jetson Thor (T5000, developer kit): "), (THOR, "")])
def test_the_title_of_a_picture_from_another_device_says_so(humanoid, monkeypatch, tmp_path, board, title):
    titles: list[str] = []
    monkeypatch.setattr(reports, "draw_latency", lambda path, measured, budget, said: titles.append(said))
    write_report(tmp_path, made(humanoid, board=board, measured=[result()], run={"machine": "AMD EPYC"}))
    assert titles == [f"{title}measured on {board or 'AMD EPYC'}"]
    assert "(latency.png)" in (tmp_path / "REPORT.md").read_text()
    write_report(tmp_path, made(humanoid))
    assert len(titles) == 1
    assert "(latency.png)" not in (tmp_path / "REPORT.md").read_text()


def test_the_sensors_signs_state_and_golden_steps_are_stated(humanoid):
    said = section(report(made(humanoid)), "What the robot must agree with")
    assert "| `gyro` | 3 | rad/s | axes of the base link |" in said
    assert "Base link: `pelvis`" in said
    # A knee bends backward about the axis to the left.
    assert "| l_knee | what points down turns backward | (0, 1, 0) of `l_thigh` | 0.2 | 0 | 0.02 |" in said
    assert "| waist_yaw | what points forward turns left | (0, 0, 1) of `pelvis` | 0.2 | 0 | 0.02 |" in said
    assert "| `last_action` | 21 | 0 |" in said
    assert "robot.png" not in said
    assert "![" in section(report(made(humanoid, drawn=True)), "What the robot must agree with")
    golden = section(report(made(humanoid)), "The same policy")
    assert "320 control steps of 4 episodes, with a command to stand after one to move (3)" in golden
    assert "**Without a lean of more than 9 degrees.**" in golden
    assert (
        "3 of 4 ways of the branches in the task's code are taken; **not taken: Where clock: false**"
        in golden
    )


def test_a_comparison_with_other_simulators_is_an_answer(humanoid):
    other = side("mujoco_warp")
    other.episodes = {"survival": np.array([1.0, 1.0, 0.0, 0.0]), "return": np.array([9.0, 9.0, 9.0, 9.0])}
    own = side("mujoco")
    own.episodes = {**own.episodes, "return": np.full(4, 10.0)}
    told = answer(
        report(made(humanoid, compared=[sim2sim.compare(own, other)])), "Does it work in other simulators?"
    )
    assert "mujoco_warp: survives 0.667 as often as in mujoco" in told
    assert "-1 (-1 to -1) on 10" in told
