"""REPORT.md: what somebody must know to decide whether the robot may run this policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.config.fields import field_docs
from robolearn.envs.backend import PARAMETERS
from robolearn.export.closed_loop import LIMIT, SECONDS, STARTS
from robolearn.export.latency.picture import draw_latency
from robolearn.export.markdown import bullets, columns, figures_table, interval, number, span, table
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


def write_report(folder: Path, out: Export, told: Callable[[Export], str] | None = None) -> None:
    """Write REPORT.md, as `told` words it or else `report`, and, where something was measured, its histogram
    latency.png."""
    if out.measured:
        where = f"measured on {_machine(out)}"
        title = where if out.checked.on_target else f"not {target_title(out)}: {where}"
        draw_latency(folder / PICTURE, out.measured, _budget(out), title)
    (folder / "REPORT.md").write_text((told or report)(out), encoding="utf-8")


def report(out: Export) -> str:
    """The report as Markdown: the answer, what it leaves open, what to do before the robot moves; then the details."""
    return joined(
        head(
            out, f"{out.manifest['contract']['task']} on {out.manifest['contract']['robot']}", _answers(out)
        ),
        not_shown(out, NOT_SHOWN),
        _met(out),
        _before(out),
        _contract(out),
        _use(out),
        same(out, "rebuilt from raw sensors", f"{returns(out)}, allowed ±{100 * LIMIT:g} %. {_fall(out)}"),
        fast(out),
        appendix(out),
    )


def joined(*sections: Sequence[str]) -> str:
    """Sections as a document."""
    return "\n\n".join(part for section in sections for part in section if part) + "\n"


def head(out: Export, title: str, answers: Sequence[Sequence[str]]) -> list[str]:
    """What this is, where it comes from, and the answers in short."""
    run, graph = out.manifest["run"], out.manifest["graph"]
    versions = [f"{name} {said}" for name, said in run.get("versions", {}).items() if name != "robolearn"]
    facts = [f"iteration {run['iteration']}, seed {run['seed']}", run.get("exported_at", "")[:10]]
    facts += [run.get("machine", ""), ", ".join(versions), f"{graph['precision']} at {rate(out):g} Hz"]
    facts.append(f"graph `{graph['sha256'][:12]}` (sha256)")
    changed = ", ".join(f"`{word}`" for word in run.get("overrides", []))
    bf16 = "**Needs TensorRT on the robot: ONNX Runtime has no bf16 products on a processor.**"
    return [
        f"# {title}, for {target_title(out)}",
        f"{out.manifest['made_by']} exported `{run['name']}`: {'; '.join(filter(None, facts))}.",
        f"**Tried with settings other than the run's: {changed}.**" if changed else "",
        "## In short",
        table(("Question", "Answer", "Known from"), answers),
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
    moved = f"{same}; return {interval(gap.low, gap.high)} the trained policy's"
    differ = f"**yes**: outputs differ by {parity.recorded:.1e} of the largest action at most"
    return [
        ("Is it the policy that was trained?", differ, f"{parity.observations} recorded observations"),
        ("Does it drive the robot as that one does, from raw sensors?", moved, f"{starts}, 95 % interval"),
        ("Does it stay up?", fell, f"the same starts{f', under {under}' * bool(under)}"),
        *_late(out),
        (f"Is it fast enough for {target_title(out)}?", *speed(out)),
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


def speed(out: Export) -> tuple[str, str]:
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


def not_shown(out: Export, always: str) -> list[str]:
    """What a decision to run it should not take from here; `always` is left open by every such bundle."""
    elsewhere, why = not out.checked.on_target, out.engine
    items = ["How fast it is beside the robot's other programs: `python runtime.py measure` while they run."]
    if elsewhere:
        there = "There: `python runtime.py measure`, with the robot's other programs running."
        items = [f"**Nothing was measured on {target_title(out)}.** {there}"]
        why = "it runs only on the device that built it. There: `python runtime.py build`"
    elif out.checked.target.any_machine:
        why = why.partition(" On a Jetson")[0].rstrip(".")  # the reason goes on to advise owners of one
    items += [f"No TensorRT engine was built: {why}."] if out.engine else []
    if not {"onnxruntime", "tensorrt"} & set(out.golden):
        items.append(f"Here the network was run by {', '.join(out.golden)}, not by what the robot will use.")
    return ["## What this does not show", f"{bullets(items + out.warnings)}\n{always}"]


def _met(out: Export) -> list[str]:
    """What was varied in training, and what never was."""
    task, contract = out.checked.trained.task, out.manifest["contract"]
    rows = [(PARAMETERS.get(name, name), span(*ends)) for name, ends in task.randomize.items()]
    for name, half in task.noise.items():
        # Of `rad (m for a slide), less the home position` a width has the rad only.
        unit = "" if name == "velocity_commands" else UNITS.get(name, "").partition(",")[0].partition(" (")[0]
        rows.append((f"noise on `{name}`, uniform", f"±{half:g} {unit.removeprefix('1')}".rstrip()))
    if _pushed(task):
        jump = f"the base's velocity jumps by {span(*task.pushes.speed)} m/s, in any direction"
        rows.append((f"pushes, every {span(*task.pushes.seconds)} s", jump))
    for name, ends in out.manifest.get("command_ranges", {}).items():
        rows.append((f"command `{name}`", f"{span(*ends)} {COMMAND_UNITS.get(name, '')}".rstrip()))
    if task.commands is not None:
        standing = f"{100 * task.commands.standing:g} % of them to stand"
        rows.append(("new commands", f"every {span(*task.commands.seconds)} s, {standing}"))
    rows.append(("time from reset to reset", f"at most {task.episode_length_s:g} s"))
    delays = {name.replace("_", " "): contract[name] for name in ("action_delay", "observation_delay")}
    delayed = any(max(steps) for steps in delays.values())
    for name, steps in delays.items():
        ms = span(*(1e3 * contract["control_dt"] * count for count in steps))
        rows += [(name, f"{span(*steps)} control steps ({ms} ms)")] * delayed
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
    return ["## What it has met in training", table(("What", "Range"), rows), bullets(items)]


def _before(out: Export) -> list[str]:
    """Checks by hand, in the order in which they are made."""
    contract, graph = out.manifest["contract"], out.manifest["graph"]
    seen = {item["name"]: f"`{item['name']}`, columns {columns(item)}" for item in contract["observations"]}
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
    observed = [(f"`{item['name']}`", columns(item), item["unit"]) for item in contract["observations"]]
    unit = "/".join(sorted({"Nm" if motor["kind"] == "force" else "rad" for motor in motors}))
    homes = any(abs(joints[motor["joint"]]["home"] - motor["offset"]) > 1e-6 for motor in motors)
    ends = {"home": "Home [rad]", "lower": "Lower [rad]", "upper": "Upper [rad]"}
    shown = {key: ends[key] for key in ends if homes or key != "home"}
    rows = []
    for motor in motors:
        numbers = [motor[key] for key in ("kp", "kd", "effort", "offset", "scale")]
        numbers += [joints[motor["joint"]][key] for key in shown]
        rows.append((motor["joint"], motor["kind"], *map(number, numbers)))
    driven = [motor["joint"] for motor in motors]
    order = "of the actuators" if driven == list(joints) else ", ".join(joints)
    free = [(n, *(number(j[key]) for key in ends)) for n, j in joints.items() if n not in driven]
    return [
        "## What the robot must agree with",
        AGREE.format(order=order, pattern=" + stepping pattern" * bool(contract["extra"])),
        table(("Observation", "Columns, from 0", "Unit"), observed),
        table([*MOTOR.format(unit).split(", "), *shown.values()], rows),
        table(("Read, not driven", *ends.values()), free) if free else "",
    ]


def _use(out: Export) -> list[str]:
    runtime, needs = "onnxruntime", "onnxruntime or tensorrt"
    if out.manifest["graph"]["precision"] == "bf16":
        runtime = needs = "tensorrt"
    command = ", ".join("0.0" for _ in out.manifest["contract"]["command"])
    return [
        "## On the robot's computer",
        USE.format(needs=needs, runtime=runtime, period=1e3 / rate(out), command=command),
        *(f"Profile {name}: {', '.join(files)}." for name, files in out.profiles.items()),
    ]


def returns(out: Export) -> str:
    """The mean returns of the closed loop."""
    return (
        f"Closed loop: mean return {out.gap.trained_return:.4f} trained, {out.gap.bundle_return:.4f} bundle"
    )


def _fall(out: Export) -> str:
    ends = ", ".join(f"`{name}`" for name in out.checked.found.config.task.terminations())
    return f"What counts as a fall: {ends or 'nothing'}."


def same(out: Export, golden: str, closing: str) -> list[str]:
    """How near the bundle is to what was trained. `golden` says what is done with the steps of golden.npz, `closing`
    what the closed loop came to."""
    parity = out.parity
    shares = {"recorded observations": parity.recorded, "observations of zero": parity.zeros}
    shares["extremes, three times what was recorded"] = parity.extremes
    head = ("Compared", "Largest difference [share of the largest action (>= 1) of each step]", "Allowed")
    again = [(name, *(f"{value:.1e}" for value in worst.values())) for name, worst in out.golden.items()]
    cosine = f" Smallest cosine: {parity.cosine:.6f}." * (out.manifest["graph"]["precision"] != "fp32")
    return [
        "## The same policy",
        f"Graph: {out.graph}. {parity.observations} observations of {parity.resets} episodes, in order.{cosine}",
        table(head, [(what, f"{share:.1e}", f"{parity.limit:.1e}") for what, share in shares.items()]),
        f"The steps of golden.npz, {golden}; largest differences as they are, not as shares:",
        table(("Runtime", *next(iter(out.golden.values()), {})), again),
        closing,
    ]


def fast(out: Export, begins: str = "sensor readings") -> list[str]:
    """The latency, measured and modelled, of a control step that `begins` with those."""
    best, elsewhere = out.recommendation, not out.checked.on_target
    budget = ", ".join(f"{name} {_budget(out)[kind]:g}" for kind, name in TIMES.items())
    parts = [
        "## Latency",
        f"Budget of a control step at {rate(out):g} Hz, from {begins} to targets [ms]: {budget}.",
        bullets(line for line in out.verdict.lines if not line.startswith("there: ")),  # that is in the table
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
        table(("Runtime", "What", *TIMES.values()), rows),
        "They say nothing about the target, only that the runtime works at this rate here." * elsewhere,
        f"![Histogram of the paced steps]({PICTURE})",
    ]


def appendix(out: Export) -> list[str]:
    """Every figure that budget and model rest on, with what it is worth and who says so."""
    parts = ["## Appendix: what budget and model rest on"]
    parts.append(figures_table("Budget, share of the control period", vars(out.checked.target.budget)))
    for e in out.estimates:
        terms = " + ".join(f"{name} {value:.4f}" for name, value in e.terms_ms.items() if value)
        parts.append(f"Model of {e.runtime} on {target_title(out)}: {e.total_ms:.4f} ms = {terms}.")
        parts += [figures_table("Figure", e.figures), bullets(f"{note}." for note in e.notes)]
    return parts


def target_title(out: Export) -> str:
    """The target's title; `this machine` would be the reader's."""
    return "the machine it was exported on" if out.checked.target.any_machine else out.checked.target.title


def _machine(out: Export) -> str:
    """Where it was measured."""
    return out.checked.board or out.manifest["run"].get("machine") or "the machine it was exported on"


def rate(out: Export) -> float:
    """The control rate [Hz]."""
    return 1 / float(out.manifest["contract"]["control_dt"])


def _budget(out: Export) -> dict[str, float]:
    return out.checked.target.budget.ms(rate(out))


def _pushed(task: Any) -> bool:
    return task.pushes is not None and max(task.pushes.speed) > 0
