"""REPORT.md of a policy of an external environment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from robolearn.export import report as shared
from robolearn.export.closed_loop import LIMIT, SECONDS, STARTS
from robolearn.export.external.loop import ZERO_RETURN, ExternalGap
from robolearn.export.markdown import interval, number, table

if TYPE_CHECKING:
    from robolearn.export.stages import Export

NOT_SHOWN = """\
- Whether a robot behaves as the environment does. The policy was tested only in the environment that it was trained in.
- **Whether the observation that your software assembles equals the environment's.** The runtime cannot check it: \
order, units, frames, filters and delays of every column are your software's. The latency below starts when the \
observation is complete.
- **Joints, gains and torques.** The environment states none; its source defines what its inputs do to a motor.
- Limits other than the clipping in the table below: the runtime refuses observations that are not finite. Your \
software must enforce the robot's limits and handle faults and the emergency stop."""

CHECKS = """\
1. Motors off: assemble observations as on the robot and compare every column with the environment's (value, unit, \
sign), in a state that you can set up in both.
2. Replay a recorded episode of the environment through the robot's software; it must pass the recorded \
observations to `robot.step`.
3. Look up in the environment's source what it does with its inputs (torque, position or position difference; gains; \
how often within a control step), and do the same.
4. Call `robot.reset()` wherever an episode of the environment would start{state}.
5. For the first run, keep a hand on the emergency stop."""

USE = """\
Copy this folder. It needs Python, numpy and {needs}, and no torch.

    python runtime.py check     # replays the recorded control steps
    python runtime.py build     # builds a TensorRT engine for that machine
    python runtime.py measure   # measures at the control rate, compares with the budget

In the robot's control loop, every {period:g} ms:

    from runtime import Bundle, Runtime, open_session

    bundle = Bundle.load(".")
    robot = Runtime(bundle, open_session(bundle, "{runtime}"))  # runs the golden check
    targets = robot.step({{"given": observation}})

`observation` holds {width} numbers in the order of the table; `targets` are the inputs of the environment."""


def report(out: Export) -> str:
    """The report as Markdown; `robolearn.export.report.report` writes that of a robot."""
    return shared.joined(
        shared.head(out, out.manifest["contract"]["task"], _answers(out)),
        shared.not_shown(out, NOT_SHOWN),
        _met(out),
        _before(out),
        _contract(out),
        _use(out),
        shared.same(out, "Replayed through the runtime", _closing(out)),
        shared.fast(out, "the observation", "outputs"),
        shared.appendix(out),
    )


def _gap(out: Export) -> ExternalGap:
    assert isinstance(out.gap, ExternalGap)
    return out.gap


def _answers(out: Export) -> list[tuple[str, ...]]:
    gap, parity = _gap(out), out.parity
    starts = f"{gap.starts} starts of {gap.seconds:g} s"
    differ = f"**yes**: outputs differ by at most {parity.recorded:.1e} of the largest action"
    does = (
        "**yes, in that environment**"
        if gap.thorough
        else f"**hardly tested**, the default is {STARTS} starts of {SECONDS:g} s"
    )
    moved = f"{does}; actions within {gap.action_difference:.1e} in every step"
    within = f"return {interval(gap.low, gap.high)} the trained policy's"
    if not gap.has_return:
        within = f"**not known**: {ZERO_RETURN}"
    elif not gap.inside:
        within = f"**not known to {100 * LIMIT:g} %**: {within}; raise `--starts`"
    if not gap.repeatable:
        within += "; the environment is not repeatable under a seed, so starts are not paired"
    ended = f"{gap.fell} of {gap.starts} starts (trained policy: {gap.trained_fell})"
    return [
        ("Is it the trained policy?", differ, f"{parity.observations} recorded observations"),
        ("Does it act like the trained policy in the environment?", moved, starts),
        ("Does it reach the same return?", within, f"{starts}, 95 % interval"),
        (f"How often is an episode terminated within {gap.seconds:g} s?", ended, "the same starts"),
        *_late(out),
        (f"Is it fast enough for {shared.target_title(out)}?", *shared.speed(out)),
    ]


def _late(out: Export) -> list[tuple[str, ...]]:
    if out.late is None:
        return []
    gap, late, dt = out.gap, out.late, 1e3 * out.manifest["contract"]["control_dt"]
    said = "**the return is not finite**"
    if math.isfinite(late.mean_return):
        ended = round(gap.starts * (1 - late.survival))
        said = f"return {late.mean_return:.4g} (on time: {gap.bundle_return:.4g}); {ended} of {gap.starts} terminated"
    return [(f"What if its outputs arrive {dt:g} ms late?", said, "the same starts, one step late")]


def _met(out: Export) -> list[str]:
    gap, contract = out.gap, out.manifest["contract"]
    rows = [
        (
            "an episode",
            f"at most {gap.episode:g} s" if math.isfinite(gap.episode) else "no time limit stated",
        ),
        ("control period", f"{1e3 * contract['control_dt']:g} ms"),
    ]
    note = (
        "The environment does not state what else was randomized, disturbed or delayed; see its source. RoboLearn "
        "added nothing to its observations."
    )
    return ["## Conditions in training", table(("What", "Range"), rows), note]


def _before(out: Export) -> list[str]:
    state = ", to clear the recurrent state" * (bool(out.manifest["state"]))
    return ["## Before it moves", CHECKS.format(state=state)]


def _contract(out: Export) -> list[str]:
    (item,), actions = out.manifest["contract"]["observations"], out.manifest["contract"]["actions"]
    rows = [(str(i), f"`{name}`") for i, name in enumerate(item["columns"])]
    ends = [(a["joint"], *(number(a[key]) for key in ("offset", "scale", "lower", "upper"))) for a in actions]
    return [
        "## What your software must agree with",
        "Numbers are rounded; manifest.json has full precision. The observation, columns from 0:",
        table(("Column", "In the environment"), rows),
        "Input of the environment = clip(offset + scale x action, lower, upper), in its own units:",
        table(("Action", "Offset", "Scale", "Lower", "Upper"), ends),
    ]


def _use(out: Export) -> list[str]:
    runtime, needs = "onnxruntime", "onnxruntime or tensorrt"
    if out.manifest["controller"]["precision"] == "bf16":
        runtime = needs = "tensorrt"
    width = out.manifest["contract"]["observations"][0]["width"]
    text = USE.format(needs=needs, runtime=runtime, period=1e3 / shared.rate(out), width=width)
    return ["## On the robot's computer", text]


def _closing(out: Export) -> str:
    pairs = "Two runs of the trained policy from the same seed had the same returns, so starts are paired."
    if not _gap(out).repeatable:
        pairs = (
            "Two runs of the trained policy from the same seed had different returns, so the interval is that of two "
            "separate samples, and the export was not refused for it."
        )
    actions = "Every action was compared with the trained policy's on the same observation."
    return f"{shared.returns(out)}. {pairs} {actions}"
