"""REPORT.md: what somebody must know to decide whether the robot may run this policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.envs.backend import PARAMETERS
from robolearn.export.closed_loop import LIMIT, SECONDS, STARTS
from robolearn.export.picture import draw_latency
from robolearn.fields import field_docs
from robolearn.runtime.observe import UNITS

if TYPE_CHECKING:
    from robolearn.export.stages import Export

PICTURE = "latency.png"

STAYS_UP = 0.9
"""Share of the starts that a policy worth a robot stays up in."""

TIMES = {"p50": "p50", "p99": "p99", "jitter": "p99 - p50", "max": "max"}
"""What is held against the budget, by its name in results, and what people call it."""

NOT_SHOWN = """\
- Whether the simulator is right about the robot: every start was simulated, without sensor noise and, but for the row \
on late targets, without delay.
- Any limit: the runtime refuses readings that are not finite and limits nothing else. Joint limits, torque limits, \
falls and the emergency stop are the robot's own to watch."""

NO_DELAY = (
    "**Trained without any delay.** Sensing, network and motor bus of a robot add some; it has never met any."
)

MEASURED = {"paced": "whole step, paced", "network": "network alone, paced", "hot": "whole step, hot"}
MEASURED["late"] = "begun late by (not judged: it is the operating system's)"
"""The parts of a result, and what people call them."""

COMMAND_UNITS = {"forward": "m/s", "sideways": "m/s, left is positive", "yaw": "rad/s, left is positive"}

BY_HAND = {
    "base_ang_vel": "turning left: the third above 0; nose going down: the second; tipping to its right: the first",
    "projected_gravity": "nose 10 degrees down -> (+0.17, 0, -0.98); 10 degrees to its right -> (0, -0.17, -0.98)",
    "joint_pos_rel": "0 at home; each joint moved by hand changes its own column, with the order and sign of the table",
    "limited_joint_pos": "the same, of the joints that have limits",
    "turning_joint_pos": "sines 0, cosines 1 at 0; a joint turned a quarter counterclockwise: its sine 1, its cosine 0",
    "joint_vel_rel": "the same columns, above 0 while the position grows",
    "velocity_commands": "the command as given",
    "gait_phase": "(0, 1) or (0, -1), and no other, as long as the robot stands upright at command 0",
}
"""What `robot.observation` must hold when somebody moves the robot; base axes x forward, y left, z up."""

CHECKS = """\
`robot` is made as under "On the robot's computer".

1. Motors off, robot held: call `robot.step`, send no targets, look at `robot.observation`{axes}:
{looks}
2. Move every joint to `robot.home` along a ramp of some seconds, with the gains of the table, and only then begin: \
the runtime makes no ramp, its first targets are full ones.
3. First {first}.
4. `robot.reset()` after every fall, stop or pause: until then it has the {keeps} of before."""

OWN_STEPS = """\
**Not only the network moves it.** The runtime has a gait clock of {frequency:g} strides a second. While it runs, it \
adds a stepping pattern to the targets of the legs ({feet}): at mid-swing {pattern} rad, and a stride as long as the \
command asks for. It runs while a part of the command is beyond {command_threshold:g}, then {stop_time:g} s more, and \
then to the end of the step.

**It starts stepping by itself, also when asked to stand**: at a lean over {lean:.1f} degrees; and when about to tip, \
which is, {settle_time:g} s after its last step, when lean + {fall_time:g} s x gyro (smoothed over {fall_filter:g} s) \
is over {tip:.1f} degrees. Expect it whenever somebody tilts or pushes the robot."""

AGREE = """\
A wrong order, sign or gain here is what breaks robots. Figures are rounded, manifest.json has them in full. For a \
joint that slides read m for rad and N for Nm.

Readings: `quat` (w, x, y, z), `gyro` in the base's axes [rad/s], `joint_pos` and `joint_vel` in the order {order}.

Target = offset + scale x action{pattern}. Kind position: torque = kp (target - position) - kd velocity, at most the \
effort. Kind force: the target itself, at most the effort."""

MOTOR = "Actuator, Kind, kp [Nm/rad], kd [Nm s/rad], Effort [Nm], Offset [{0}], Scale [{0}]"

USE = """\
Copy this folder. It needs Python, numpy and {needs}, and no torch.

    python runtime.py check     # the recorded control steps again, from raw sensors
    python runtime.py build     # a TensorRT engine for that very machine
    python runtime.py measure   # paced at the control rate, against the budget

In the robot's control loop, every {period:g} ms:

    from runtime import Bundle, Runtime, open_session

    bundle = Bundle.load(".")
    robot = Runtime(bundle, open_session(bundle, "{runtime}"))  # checked before you get it
    targets = robot.step({{"quat": q, "gyro": w, "joint_pos": p, "joint_vel": v}}, [{command}])"""


def write_report(folder: Path, out: Export) -> None:
    """Write REPORT.md and, where something was measured, its histogram latency.png."""
    if out.measured:
        where = f"measured on {_machine(out)}"
        title = where if out.checked.on_target else f"not {_target(out)}: {where}"
        draw_latency(folder / PICTURE, out.measured, _budget(out), title)
    (folder / "REPORT.md").write_text(report(out), encoding="utf-8")


def report(out: Export) -> str:
    """The report as Markdown: the answer, what it leaves open, what to do before the robot moves; then the details."""
    sections = (_head, _not_shown, _met, _before, _contract, _use, _same, _fast, _appendix)
    return "\n\n".join(part for section in sections for part in section(out) if part) + "\n"


def _head(out: Export) -> list[str]:
    """What this is, where it comes from, and the answers in short."""
    run, graph, contract = (out.manifest[key] for key in ("run", "graph", "contract"))
    versions = [f"{name} {said}" for name, said in run.get("versions", {}).items() if name != "robolearn"]
    facts = [f"iteration {run['iteration']}, seed {run['seed']}", run.get("exported_at", "")[:10]]
    facts += [run.get("machine", ""), ", ".join(versions), f"{graph['precision']} at {_rate(out):g} Hz"]
    facts.append(f"graph `{graph['sha256'][:12]}` (sha256)")
    changed = ", ".join(f"`{word}`" for word in run.get("overrides", []))
    bf16 = "**Needs TensorRT on the robot: ONNX Runtime has no bf16 products on a processor.**"
    return [
        f"# {contract['task']} on {contract['robot']}, for {_target(out)}",
        f"{out.manifest['made_by']} exported `{run['name']}`: {'; '.join(filter(None, facts))}.",
        f"**Tried with settings other than the run's: {changed}.**" if changed else "",
        "## In short",
        _table(("Question", "Answer", "Known from"), _answers(out)),
        bf16 if graph["precision"] == "bf16" else "",
    ]


def _answers(out: Export) -> list[tuple[str, ...]]:
    gap, parity, tried = out.gap, out.parity, out.checked.found.config.task
    starts = f"{gap.starts} starts of {gap.seconds:g} s"
    same, little = "**yes, in simulation**", "**hardly tested**"
    fell = f"{gap.fell} of {gap.starts} starts fell within {gap.seconds:g} s (trained policy: {gap.trained_fell})"
    if not gap.thorough:
        same = f"{little}: {starts}; the default is {STARTS} of {min(SECONDS, gap.episode):g} s"
    if gap.bundle_survival < STAYS_UP:
        fell = f"**no**: {fell}"
        fell += "; the trained policy does not either" * (gap.trained_survival < STAYS_UP)
    elif not gap.thorough:
        fell = f"{little}: {fell}"
    under = " and ".join(["pushes"] * _pushed(tried) + ["varied physics"] * bool(tried.randomize))
    moved = f"{same}; return {_interval(gap.low, gap.high)} the trained policy's"
    differ = f"**yes**: outputs differ by {parity.recorded:.1e} of the largest action at most"
    return [
        ("Is it the policy that was trained?", differ, f"{parity.observations} recorded observations"),
        ("Does it drive the robot as that one does, from raw sensors?", moved, f"{starts}, 95 % interval"),
        ("Does it stay up?", fell, f"the same starts{f', under {under}' * bool(under)}"),
        *_late(out),
        (f"Is it fast enough for {_target(out)}?", *_speed(out)),
    ]


def _late(out: Export) -> list[tuple[str, ...]]:
    """What a delay does to it, which every robot has."""
    if out.late is None:
        return []
    gap, late, dt = out.gap, out.late, 1e3 * out.manifest["contract"]["control_dt"]
    fell = round(gap.starts * (1 - late.survival))
    said = f"{fell} of {gap.starts} starts fell (in time: {gap.fell})"
    if math.isfinite(late.mean_return) and gap.bundle_return > 0:
        said += f"; return {100 * (late.mean_return / gap.bundle_return - 1):+.1f} %"
    bad = late.survival < STAYS_UP
    return [
        (
            f"What if its targets arrive {dt:g} ms late?",
            f"**{said}**" if bad else said,
            "the same starts, one step late",
        )
    ]


def _speed(out: Export) -> tuple[str, str]:
    """Whether a control step fits, and how anybody knows: only a measurement on the target says yes."""
    budget, verdict = _budget(out), out.verdict
    if verdict.basis == "modelled":
        estimate = next(e for e in out.estimates if e.runtime == verdict.runtime)
        figures = f"{estimate.total_ms:.2f} of {budget['p50']:g} ms (p50)"
        model = f"a model{' of assumed figures' * bool(estimate.assumed)}"
        said = f"**not known**: {model} expects" if verdict.fits else f"**no**, says {model}:"
        return f"{said} {figures}", "**a model, not a measurement**"
    if verdict.basis != "measured-on-target":
        return "**not known**", verdict.lines[0].partition(": ")[2]
    step = next(result["paced"] for result in out.measured if result["runtime"] == verdict.runtime)
    times = []
    for kind, name in TIMES.items():
        mark = "" if step[f"{kind}_ms"] <= budget[kind] else "**"
        times.append(f"{mark}{name} {step[f'{kind}_ms']:.3f} of {budget[kind]:g}{mark}")
    answer = "yes" if verdict.fits else "no"
    return f"**{answer}**: {', '.join(times)} ms", f"**measured on {_machine(out)}**, {verdict.runtime}"


def _not_shown(out: Export) -> list[str]:
    """What a decision to run it should not take from here."""
    elsewhere, why = not out.checked.on_target, out.engine
    items = ["How fast it is beside the robot's other programs: `python runtime.py measure` while they run."]
    if elsewhere:
        there = "There: `python runtime.py measure`, with the robot's other programs running."
        items = [f"**Nothing was measured on {_target(out)}.** {there}"]
        why = "it runs only on the device that built it. There: `python runtime.py build`"
    elif out.checked.target.any_machine:
        why = why.partition(" On a Jetson")[0].rstrip(".")  # the reason goes on to advise owners of one
    items += [f"No TensorRT engine was built: {why}."] if out.engine else []
    if not {"onnxruntime", "tensorrt"} & set(out.golden):
        items.append(f"Here the network was run by {', '.join(out.golden)}, not by what the robot will use.")
    return ["## What this does not show", f"{_list(items + out.warnings)}\n{NOT_SHOWN}"]


def _met(out: Export) -> list[str]:
    """What was varied in training, and what never was."""
    task, contract = out.checked.trained.task, out.manifest["contract"]
    rows = [(PARAMETERS.get(name, name), _span(*ends)) for name, ends in task.randomize.items()]
    for name, half in task.noise.items():
        # Of `rad (m for a slide), less the home position` a width has the rad only.
        unit = "" if name == "velocity_commands" else UNITS.get(name, "").partition(",")[0].partition(" (")[0]
        rows.append((f"noise on `{name}`, uniform", f"±{half:g} {unit.removeprefix('1')}".rstrip()))
    if _pushed(task):
        jump = f"the base's velocity jumps by {_span(*task.pushes.speed)} m/s, in any direction"
        rows.append((f"pushes, every {_span(*task.pushes.seconds)} s", jump))
    for name, ends in out.manifest.get("command_ranges", {}).items():
        rows.append((f"command `{name}`", f"{_span(*ends)} {COMMAND_UNITS.get(name, '')}".rstrip()))
    if task.commands is not None:
        standing = f"{100 * task.commands.standing:g} % of them to stand"
        rows.append(("new commands", f"every {_span(*task.commands.seconds)} s, {standing}"))
    rows.append(("time from reset to reset", f"at most {task.episode_length_s:g} s"))
    delays = {name.replace("_", " "): contract[name] for name in ("action_delay", "observation_delay")}
    delayed = any(max(steps) for steps in delays.values())
    for name, steps in delays.items():
        ms = _span(*(1e3 * contract["control_dt"] * count for count in steps))
        rows += [(name, f"{_span(*steps)} control steps ({ms} ms)")] * delayed
    without = ["varied physics"] * (not task.randomize) + ["sensor noise"] * (not task.noise)
    without += ["pushes"] * (not _pushed(task))
    items = [NO_DELAY] if not delayed else []
    items += [f"**Trained without {', without '.join(without)}.**"] if without else []
    if contract["command"]:
        clip = "clip them to `robot.command_low` and `robot.command_high`"
        items.append(f"The runtime also follows commands outside these ranges: {clip}.")
    for name, value in type(task).on_robot.items():
        if (before := getattr(task, name)) != value:
            about = f"{value} on the robot and in the closed loop, {before} in training"
            items.append(f"`{name}`: {about}. {field_docs(task.__class__).get(name, '')}".rstrip())
    return ["## What it has met in training", _table(("What", "Range"), rows), _list(items)]


def _before(out: Export) -> list[str]:
    """Checks by hand, in the order in which they are made."""
    contract, graph = out.manifest["contract"], out.manifest["graph"]
    seen = {item["name"]: f"`{item['name']}`, columns {_columns(item)}" for item in contract["observations"]}
    looks = "\n".join(f"   - {seen[name]}: {BY_HAND[name]}." for name in seen if name in BY_HAND)
    base = not {"projected_gravity", "base_ang_vel"}.isdisjoint(seen)
    first = ["on a gantry, rope slack, feet on the ground"] * base + ["command 0"] * bool(contract["command"])
    first.append("a hand on the emergency stop")
    clock = contract["extra"].get("gait_clock")
    keeps = ["last action"] + ["gait clock"] * bool(clock) + ["memory"] * (len(graph.get("inputs", ())) > 1)
    axes = " (base axes: x forward, y left, z up)" * base
    fill = {"axes": axes, "looks": looks, "first": ", ".join(first), "keeps": " and ".join(keeps)}
    parts = ["## Before it moves", CHECKS.format(**fill)]
    if clock:
        fill = {"pattern": ", ".join(f"{k} {v:+g}" for k, v in contract["extra"]["step_pattern"].items())}
        lean, tip = (math.degrees(math.asin(min(1, clock[f"balance_{key}"]))) for key in ("lean", "start"))
        parts.append(OWN_STEPS.format(**clock, **fill, lean=lean, tip=tip, feet=" and ".join(clock["legs"])))
    return parts


def _contract(out: Export) -> list[str]:
    contract = out.manifest["contract"]
    joints, motors = {joint["name"]: joint for joint in contract["joints"]}, contract["actions"]
    observed = [(f"`{item['name']}`", _columns(item), item["unit"]) for item in contract["observations"]]
    unit = "/".join(sorted({"Nm" if motor["kind"] == "force" else "rad" for motor in motors}))
    homes = any(abs(joints[motor["joint"]]["home"] - motor["offset"]) > 1e-6 for motor in motors)
    ends = {"home": "Home [rad]", "lower": "Lower [rad]", "upper": "Upper [rad]"}
    shown = {key: ends[key] for key in ends if homes or key != "home"}
    rows = []
    for motor in motors:
        numbers = [motor[key] for key in ("kp", "kd", "effort", "offset", "scale")]
        numbers += [joints[motor["joint"]][key] for key in shown]
        rows.append((motor["joint"], motor["kind"], *map(_number, numbers)))
    driven = [motor["joint"] for motor in motors]
    order = "of the actuators" if driven == list(joints) else ", ".join(joints)
    free = [(n, *(_number(j[key]) for key in ends)) for n, j in joints.items() if n not in driven]
    return [
        "## What the robot must agree with",
        AGREE.format(order=order, pattern=" + stepping pattern" * bool(contract["extra"])),
        _table(("Observation", "Columns, from 0", "Unit"), observed),
        _table([*MOTOR.format(unit).split(", "), *shown.values()], rows),
        _table(("Read, not driven", *ends.values()), free) if free else "",
    ]


def _use(out: Export) -> list[str]:
    runtime, needs = "onnxruntime", "onnxruntime or tensorrt"
    if out.manifest["graph"]["precision"] == "bf16":
        runtime = needs = "tensorrt"
    command = ", ".join("0.0" for _ in out.manifest["contract"]["command"])
    return [
        "## On the robot's computer",
        USE.format(needs=needs, runtime=runtime, period=1e3 / _rate(out), command=command),
        *(f"Profile {name}: {', '.join(files)}." for name, files in out.profiles.items()),
    ]


def _same(out: Export) -> list[str]:
    parity, gap = out.parity, out.gap
    shares = {"recorded observations": parity.recorded, "observations of zero": parity.zeros}
    shares["extremes, three times what was recorded"] = parity.extremes
    head = ("Compared", "Largest difference [share of the largest action (>= 1) of each step]", "Allowed")
    again = [(name, *(f"{value:.1e}" for value in worst.values())) for name, worst in out.golden.items()]
    cosine = f" Smallest cosine: {parity.cosine:.6f}." * (out.manifest["graph"]["precision"] != "fp32")
    ends = ", ".join(f"`{name}`" for name in out.checked.found.config.task.terminations())
    returns = f"{gap.trained_return:.4f} trained, {gap.bundle_return:.4f} bundle, allowed ±{100 * LIMIT:g} %"
    return [
        "## The same policy",
        f"Graph: {out.graph}. {parity.observations} observations of {parity.resets} episodes, in order.{cosine}",
        _table(head, [(what, f"{share:.1e}", f"{parity.limit:.1e}") for what, share in shares.items()]),
        "The steps of golden.npz, rebuilt from raw sensors; largest differences as they are, not as shares:",
        _table(("Runtime", *next(iter(out.golden.values()), {})), again),
        f"Closed loop: mean return {returns}. What counts as a fall: {ends or 'nothing'}.",
    ]


def _fast(out: Export) -> list[str]:
    best, elsewhere = out.recommendation, not out.checked.on_target
    budget = ", ".join(f"{name} {_budget(out)[kind]:g}" for kind, name in TIMES.items())
    parts = [
        "## Latency",
        f"Budget of a control step at {_rate(out):g} Hz, from sensor readings to targets [ms]: {budget}.",
        _list(line for line in out.verdict.lines if not line.startswith("there: ")),  # that is in the table
    ]
    if best and out.verdict.basis == "measured-on-target":
        parts.append(f"Recommended runtime: **{best.runtime}**. {best.reason}")
    elif best:
        others = [f"{e.runtime} {e.total_ms:.2f} ms" for e in out.estimates if e.runtime != best.runtime]
        parts.append(f"Try first: **{best.runtime}**{f'; the model gives {others[0]}' if others else ''}.")
    if not out.measured:
        return parts
    rows = [
        (result["runtime"], what, *(f"{result[key][f'{kind}_ms']:.3f}" for kind in TIMES))
        for result in out.measured
        for key, what in MEASURED.items()
    ]
    where = f"Measured on {_machine(out)}{', **not the target**' * elsewhere} [ms]."
    return [
        *parts,
        f"{where} Paced: asleep between two steps, as on a robot; hot: one step after the other.",
        _table(("Runtime", "What", *TIMES.values()), rows),
        "They say nothing about the target, only that the runtime works at this rate here." * elsewhere,
        f"![Histogram of the paced steps]({PICTURE})",
    ]


def _appendix(out: Export) -> list[str]:
    """Every figure that budget and model rest on, with what it is worth and who says so."""
    parts = ["## Appendix: what budget and model rest on"]
    parts.append(_figures("Budget, share of the control period", vars(out.checked.target.budget)))
    for e in out.estimates:
        terms = " + ".join(f"{name} {value:.4f}" for name, value in e.terms_ms.items() if value)
        parts.append(f"Model of {e.runtime} on {_target(out)}: {e.total_ms:.4f} ms = {terms}.")
        parts += [_figures("Figure", e.figures), _list(f"{note}." for note in e.notes)]
    return parts


def _target(out: Export) -> str:
    """The target's title; `this machine` would be the reader's."""
    return "the machine it was exported on" if out.checked.target.any_machine else out.checked.target.title


def _machine(out: Export) -> str:
    """Where it was measured."""
    return out.checked.board or out.manifest["run"].get("machine") or "the machine it was exported on"


def _rate(out: Export) -> float:
    return 1 / float(out.manifest["contract"]["control_dt"])


def _budget(out: Export) -> dict[str, float]:
    return out.checked.target.budget.ms(_rate(out))


def _pushed(task: Any) -> bool:
    return task.pushes is not None and max(task.pushes.speed) > 0


def _interval(low: float, high: float) -> str:
    """An interval of shares in percent, as ± where it is about symmetric or too small to have a side."""
    low, high = 100 * low, 100 * high
    narrow, wide = sorted((abs(low), abs(high)))
    if low <= 0 <= high and (narrow >= wide / 2 or wide <= LIMIT):
        return f"within ±{max(1, math.ceil(1e3 * wide - 1e-6)) / 1e3:g} % of"
    return f"{low:+.3f} to {high:+.3f} % off"


def _span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _columns(item: dict[str, Any]) -> str:
    return _span(item["column"], item["column"] + item["width"] - 1)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _figures(title: str, figures: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", f"{f.value:g}", f.mark, f.source) for name, f in figures.items()]
    return _table((title, "Value", "Mark", "Source"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [tuple(cell.replace("|", "/") for cell in row) for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (tuple(head), ("---",) * len(head), *cells))
