"""REPORT.md of a policy from somebody else's environment: what is known of it, and what the user must bring."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from robolearn.export import report as shared
from robolearn.export.closed_loop import LIMIT, SECONDS, STARTS
from robolearn.export.external.loop import UNPAID, ExternalGap
from robolearn.export.markdown import interval, number, table

if TYPE_CHECKING:
    from robolearn.export.stages import Export

NOT_SHOWN = """\
- Whether a robot behaves as the environment does. It was tried in the environment that it was trained in, and nowhere \
else.
- **Whether the observation that your software puts together is the environment's.** The runtime is given it whole and \
cannot tell: order, units, frames, filters and delays of every column are yours, and so is the time it takes: the \
latency below begins when the observation is there.
- **Anything about joints, gains or torques.** The environment told none. What its numbers do to a motor only the \
environment knows.
- Any limit but the clipping of the table below: the runtime refuses observations that are not finite. Limits of the \
robot, faults and the emergency stop are its own to watch."""

CHECKS = """\
1. Motors off: put observations together as on the robot and compare every column with the environment's, in a state \
that you can bring about in both: value, unit, sign.
2. Feed the robot's software a recorded episode of the environment; what it gives to `robot.step` must be the recorded \
observation.
3. Look up in the environment's source what it does with the numbers it is given (a torque, a position, a difference; \
which gains; how often within a control step), and do the same.
4. `robot.reset()` wherever an episode of the environment would begin{memory}.
5. First with a hand on the emergency stop."""

USE = """\
Copy this folder. It needs Python, numpy and {needs}, and no torch.

    python runtime.py check     # the recorded control steps again
    python runtime.py build     # a TensorRT engine for that very machine
    python runtime.py measure   # paced at the control rate, against the budget

In the robot's control loop, every {period:g} ms:

    from runtime import Bundle, Runtime, open_session

    bundle = Bundle.load(".")
    robot = Runtime(bundle, open_session(bundle, "{runtime}"))  # checked before you get it
    targets = robot.step({{"given": observation}})

`observation` holds {width} numbers in the order of the table, `targets` what the environment would be given."""


def report(out: Export) -> str:
    """The report as Markdown, as `robolearn.export.report.report` for a robot of ours."""
    return shared.joined(
        shared.head(out, out.manifest["contract"]["task"], _answers(out)),
        shared.not_shown(out, NOT_SHOWN),
        _met(out),
        _before(out),
        _contract(out),
        _use(out),
        shared.same(out, "given to the runtime again", _closing(out)),
        shared.fast(out, "the observation"),
        shared.appendix(out),
    )


def _gap(out: Export) -> ExternalGap:
    assert isinstance(out.gap, ExternalGap)
    return out.gap


def _answers(out: Export) -> list[tuple[str, ...]]:
    gap, parity = _gap(out), out.parity
    starts = f"{gap.starts} starts of {gap.seconds:g} s"
    differ = f"**yes**: outputs differ by {parity.recorded:.1e} of the largest action at most"
    does = (
        "**yes, there**"
        if gap.thorough
        else f"**hardly tested**, the default is {STARTS} starts of {SECONDS:g} s"
    )
    moved = f"{does}; actions within {gap.apart:.1e} in every step"
    within = f"return {interval(gap.low, gap.high)} the trained policy's"
    if not gap.paid:
        within = f"**not known**: {UNPAID}"
    elif not gap.inside:
        within = f"**not known to {100 * LIMIT:g} %**: {within}; more `--starts` tell"
    if not gap.repeats:
        within += "; the environment does not repeat under a seed, so starts could not be paired"
    ended = f"{gap.fell} of {gap.starts} starts (trained policy: {gap.trained_fell})"
    return [
        ("Is it the policy that was trained?", differ, f"{parity.observations} recorded observations"),
        ("Does it act in its environment as that one does?", moved, starts),
        ("Does it earn as much there?", within, f"{starts}, 95 % interval"),
        (f"How often is an episode terminated within {gap.seconds:g} s?", ended, "the same starts"),
        *_late(out),
        (f"Is it fast enough for {shared.target_title(out)}?", *shared.speed(out)),
    ]


def _late(out: Export) -> list[tuple[str, ...]]:
    if out.late is None:
        return []
    gap, late, dt = out.gap, out.late, 1e3 * out.manifest["contract"]["control_dt"]
    said = "**it ends in numbers that are not finite**"
    if math.isfinite(late.mean_return):
        ended = round(gap.starts * (1 - late.survival))
        said = f"return {late.mean_return:.4g} (in time: {gap.bundle_return:.4g}); {ended} of {gap.starts} terminated"
    return [(f"What if its outputs arrive {dt:g} ms late?", said, "the same starts, one step late")]


def _met(out: Export) -> list[str]:
    gap, contract = out.gap, out.manifest["contract"]
    rows = [
        ("an episode", f"at most {gap.episode:g} s" if math.isfinite(gap.episode) else "no time limit told"),
        ("control period", f"{1e3 * contract['control_dt']:g} ms"),
    ]
    told = (
        "What else was varied, disturbed or delayed, the environment knows and does not tell: see its source. "
        "Nothing was added to what it observes."
    )
    return ["## What it has met in training", table(("What", "Range"), rows), told]


def _before(out: Export) -> list[str]:
    memory = ", or its memory is of before" * (len(out.manifest["graph"].get("inputs", ())) > 1)
    return ["## Before it moves", CHECKS.format(memory=memory)]


def _contract(out: Export) -> list[str]:
    (item,), actions = out.manifest["contract"]["observations"], out.manifest["contract"]["actions"]
    rows = [(str(i), f"`{name}`") for i, name in enumerate(item["columns"])]
    ends = [(a["joint"], *(number(a[key]) for key in ("offset", "scale", "lower", "upper"))) for a in actions]
    return [
        "## What your software must agree with",
        "Figures are rounded, manifest.json has them in full. The observation, by column from 0:",
        table(("Column", "In the environment"), rows),
        "What the environment would be given = clip(offset + scale x action, lower, upper), its own numbers:",
        table(("Action", "Offset", "Scale", "Lower", "Upper"), ends),
    ]


def _use(out: Export) -> list[str]:
    runtime, needs = "onnxruntime", "onnxruntime or tensorrt"
    if out.manifest["graph"]["precision"] == "bf16":
        runtime = needs = "tensorrt"
    width = out.manifest["contract"]["observations"][0]["width"]
    text = USE.format(needs=needs, runtime=runtime, period=1e3 / shared.rate(out), width=width)
    return ["## On the robot's computer", text]


def _closing(out: Export) -> str:
    pairs = "The same policy earned the same twice from the same seed, so starts are pairs."
    if not _gap(out).repeats:
        pairs = (
            "The same policy earned something else the second time from the same seed, so the interval is of two "
            "separate samples, and nothing was refused for it."
        )
    return f"{shared.returns(out)}. {pairs} Every action was held against the trained policy's on the same observation."
