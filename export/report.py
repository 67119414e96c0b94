"""REPORT.md: the facts for deciding whether a robot may run the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.envs.actuators.model import by_model
from robolearn.envs.parameters import PARAMETERS, changed_by
from robolearn.export import other_simulators
from robolearn.export.closed_loop import LIMIT, SECONDS, STARTS
from robolearn.export.markdown import bullets, columns, figures_table, interval, span, table
from robolearn.export.robot_report import agreement, golden_facts
from robolearn.runtime.picture import draw_latency
from robolearn.tasks.mdp.commands import Pushes
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.sensing import POLICY, SENSOR_ERRORS, Sensing, noisy

if TYPE_CHECKING:
    from robolearn.export.stages import Export

PICTURE, HOME_PICTURE = "latency.png", "robot.png"

STAYS_UP = 0.9
"""Least share of starts without a fall that is not marked in the report."""

TIMES = {"p50": "p50", "p99": "p99", "jitter": "p99 - p50", "max": "max"}
"""Times that are compared with the budget: name in results -> name in the report."""

NOT_SHOWN = """\
- Whether the simulator is right about the robot: every start was simulated, without noise on observations and, except \
in the row on late joint targets and for the delays of sensors and of simulated motors, without delay. Actions that do \
not arrive are simulated as config.yaml says.
- Limits: the runtime refuses readings that are not finite and enforces no other limit. The robot's software must \
enforce joint and torque limits and handle falls and the emergency stop."""

NO_DELAY = (
    "**Trained without delays.** Sensors, network and motor bus of a robot add some; training had none."
)

MEASURED = {"paced": "whole step, paced", "network": "network alone, paced", "hot": "whole step, hot"}
MEASURED["late"] = "start delay (depends on the operating system; not compared with the budget)"
"""Parts of a measurement: name in results -> name in the report."""

COMMANDS = ("velocity_commands", "pose_commands")
"""Observations that pass the command on."""

BY_HAND = {
    "base_ang_vel": "turning left: the third is positive; nose going down: the second; tipping to the right: the first",
    "projected_gravity": "nose 10 degrees down -> (+0.17, 0, -0.98); 10 degrees to the right -> (0, -0.17, -0.98)",
    "joint_pos_rel": "0 at home; moving a joint by hand changes only its column, with the order and sign of the table",
    "limited_joint_pos": "the same, for the joints that have limits",
    "turning_joint_pos": "sines 0 and cosines 1 at 0; after a quarter turn counterclockwise: sine 1, cosine 0",
    "joint_vel_rel": "the same columns, positive while the position grows",
    "velocity_commands": "equal to the command",
    "pose_commands": "equal to the command",
}
"""Expected `robot.observation` while the robot is moved by hand; base axes x forward, y left, z up."""

CHECKS = """\
`robot` is made as under "On the robot's computer".

1. Motors off, robot held: call `robot.step`, do not send the joint targets, and check `robot.observation`{axes}:
{looks}
2. Hold the robot up and move every joint to `robot.home` along a ramp of a few seconds, with the gains of the table, \
before the first step: the runtime makes no ramp. Nothing says that the home pose stands by itself, so hold the robot \
until the policy runs, and when it stops.
3. First run: {first}.
4. Call `robot.reset()` after every fall, stop or pause: until then the runtime holds the old {keeps}."""

USE = """\
Copy this folder. It needs Python, numpy and {needs}, and no torch.

    python runtime.py check     # replays the recorded control steps, from raw sensors
    python runtime.py build     # builds a TensorRT engine for that machine
    python runtime.py measure   # measures at the control rate, compares with the budget

In the robot's control loop, every {period:g} ms:

    from runtime import Bundle, Runtime, open_session

    bundle = Bundle.load(".")
    robot = Runtime(bundle, open_session(bundle, "{runtime}"))  # runs the golden check
    targets = robot.step({{{sensors}}}, [{command}])"""


def write_report(folder: Path, out: Export, make: Callable[[Export], str] | None = None) -> None:
    """Write REPORT.md and, where something was measured, its histogram latency.png.

    Args:
        folder: of the bundle.
        out: results of the stages.
        make: returns the text; `report` where None.
    """
    if out.measured:
        where = f"measured on {_machine(out)}"
        title = where if out.checked.on_target else f"not {target_title(out)}: {where}"
        draw_latency(folder / PICTURE, out.measured, _budget(out), title)
    (folder / "REPORT.md").write_text((make or report)(out), encoding="utf-8")


def report(out: Export) -> str:
    """The report as Markdown: answers, open questions, checks before the robot moves; then the details."""
    return joined(
        head(
            out, f"{out.manifest['contract']['task']} on {out.manifest['contract']['robot']}", _answers(out)
        ),
        not_shown(out, NOT_SHOWN),
        _met(out),
        _before(out),
        _contract(out),
        _use(out),
        same(out, "Replayed from raw sensors", _closing(out)),
        fast(out),
        appendix(out),
    )


def joined(*sections: Sequence[str]) -> str:
    """Joins sections to a document."""
    return "\n\n".join(part for section in sections for part in section if part) + "\n"


def head(out: Export, title: str, answers: Sequence[Sequence[str]]) -> list[str]:
    """Title, origin of the policy, and the answers in short."""
    run, graph = out.manifest["run"], out.manifest["controller"]
    versions = [f"{name} {said}" for name, said in run.get("versions", {}).items() if name != "robolearn"]
    policy = f"policy {run['policy']}" if "policy" in run else ""
    facts = [policy, f"iteration {run['iteration']}, seed {run['seed']}", run.get("exported_at", "")[:10]]
    facts += [run.get("machine", ""), ", ".join(versions), f"{graph['precision']} at {rate(out):g} Hz"]
    facts.append(f"ONNX file `{graph['sha256'][:12]}` (sha256)")
    changed = ", ".join(f"`{word}`" for word in run.get("overrides", []))
    bf16 = "**Needs TensorRT on the robot: ONNX Runtime has no bf16 products on a CPU.**"
    return [
        f"# {title}, for {target_title(out)}",
        f"{out.manifest['made_by']} exported `{run['name']}`: {'; '.join(filter(None, facts))}.",
        f"**The closed loop ran with settings other than the run's: {changed}.**" if changed else "",
        "## In short",
        table(("Question", "Answer", "Based on"), answers),
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
        fell += "; the trained policy falls, too" * (gap.trained_survival < STAYS_UP)
    elif not gap.thorough:
        fell = f"{little}: {fell}"
    under = " and ".join(["pushes"] * _pushed(tried) + ["randomized physics"] * _varies(tried))
    moved = f"{same}; return {interval(gap.low, gap.high)} the trained policy's"
    differ = f"**yes**: outputs differ by at most {parity.recorded:.1e} of the largest action"
    return [
        ("Is it the trained policy?", differ, f"{parity.observations} recorded observations"),
        (
            "Does it control the robot like the trained policy, from raw sensors?",
            moved,
            f"{starts}, 95 % interval",
        ),
        ("Does it stay up?", fell, f"the same starts{f', under {under}' * bool(under)}"),
        *_late(out),
        *other_simulators.answer(out.compared),
        (f"Is it fast enough for {target_title(out)}?", *speed(out)),
    ]


def _late(out: Export) -> list[tuple[str, ...]]:
    """The effect of a delay of one control step."""
    if out.late is None:
        return []
    gap, late, dt = out.gap, out.late, 1e3 * out.manifest["contract"]["control_dt"]
    fell = round(gap.starts * (1 - late.survival))
    said = f"{fell} of {gap.starts} starts fell (on time: {gap.fell})"
    if math.isfinite(late.mean_return) and gap.bundle_return > 0:
        said += f"; return {100 * (late.mean_return / gap.bundle_return - 1):+.1f} %"
    bad = late.survival < STAYS_UP
    return [
        (
            f"What if its joint targets arrive {dt:g} ms late?",
            f"**{said}**" if bad else said,
            "the same starts, one step late",
        )
    ]


def speed(out: Export) -> tuple[str, str]:
    """(answer whether a control step meets the budget, its basis); only a measurement on the export target says yes."""
    budget, verdict = _budget(out), out.verdict
    if verdict.basis == "modelled":
        estimate = next(e for e in out.estimates if e.runtime == verdict.runtime)
        figures = f"{estimate.total_ms:.2f} of {budget['p50']:g} ms (p50)"
        model = f"a model{' with assumed figures' * bool(estimate.assumed)}"
        said = f"**not known**: {model} predicts" if verdict.fits else f"**no**, predicts {model}:"
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
    """What the report does not show; `always` holds the items of every such bundle."""
    elsewhere, why = not out.checked.on_target, out.engine
    items = [
        "How fast it is while the robot's other programs run: `python runtime.py measure` while they run."
    ]
    if elsewhere:
        there = "On it: `python runtime.py measure`, with the robot's other programs running."
        items = [f"**Nothing was measured on {target_title(out)}.** {there}"]
        why = "it runs only on the device that built it. On the robot: `python runtime.py build`"
    elif out.checked.target.any_machine:
        why = why.partition(" On a Jetson")[0].rstrip(".")  # without the advice for a Jetson
    items += [f"No TensorRT engine was built: {why}."] if out.engine else []
    if not {"onnxruntime", "tensorrt"} & set(out.golden):
        items.append(
            f"In the export {', '.join(out.golden)} ran the network, not the runtime that the robot will use."
        )
    return ["## What this does not show", f"{bullets(items + out.warnings)}\n{always}"]


def _met(out: Export) -> list[str]:
    """What was randomized in training, and what was not."""
    task, contract = out.checked.trained.task.filled(), out.manifest["contract"]
    units = {item["name"]: item["unit"] for item in contract["observations"]}
    met = out.manifest.get("conditions", {}).get("randomize", task.randomize)
    rows = [
        (_parameter(name), f"{span(*each)}{Randomized.of(each).notes()}{_grown(task, 'randomize')}")
        for name, each in task.randomize.items()
        if name in met
    ]
    for name, half in task.noise.items():
        # Only the unit: `rad` of `rad (m for a slide), less the home position`.
        unit = "" if name in COMMANDS else units.get(name, "").partition(",")[0].partition(" (")[0]
        rows.append((f"noise on `{name}`, uniform", f"±{half:g} {unit.removeprefix('1')}".rstrip()))
    for name, each in task.sensing.items():
        unit = units.get(name, "").partition(",")[0].partition(" (")[0].removeprefix("1")
        rows += _sensed(name, each, unit, contract["control_dt"])
    if task.packet_loss:
        rows.append(
            ("actions that do not arrive", f"{100 * task.packet_loss:g} %, drawn in each control step")
        )
    rows += ground_rows(out.manifest.get("conditions", {}).get("terrain", {}))
    motors = out.manifest.get("motors", {})
    for model, joints in by_model(motors.items()).items():
        unit = "; delay in control steps" if "delay" in model else ""
        rows.append((f"motors of {', '.join(joints)}", model + unit))
    if _pushed(task):
        rows.append(
            (f"pushes, every {span(*task.pushes.seconds)} s", _jumps(task.pushes) + _grown(task, "pushes"))
        )
    if task.commands is not None:
        of_command = dict(zip(task.commands.names, task.commands.units, strict=True))
        for name, ends in out.manifest.get("command_ranges", {}).items():
            asked = f"{span(*ends)} {of_command.get(name, '')}".rstrip()
            rows.append((f"command `{name}`", asked + _grown(task, "commands")))
        if times := getattr(task.commands, "seconds", None):
            standing = getattr(task.commands, "standing", None)
            share = "" if standing is None else f", {100 * standing:g} % of them to stand"
            rows.append(("new commands", f"every {span(*times)} s{share}"))
    rows.append(("time from reset to reset", f"at most {task.episode_length_s:g} s"))
    delays = {name.replace("_", " "): contract[name] for name in ("action_delay", "observation_delay")}
    delayed = any(max(steps) for steps in delays.values())
    late = any(each.delay[1] for each in task.sensing.values()) or any("delay" in m for m in motors.values())
    for name, steps in delays.items():
        ms = span(*(1e3 * contract["control_dt"] * count for count in steps))
        grown = _grown(task, "randomize") if max(steps) else ""
        rows += [(name, f"{span(*steps)} control steps ({ms} ms){grown}")] * delayed
    without = ["randomized physics"] * (not _varies(task)) + ["sensor noise"] * (not noisy(task))
    without += ["pushes"] * (not _pushed(task))
    items = [NO_DELAY] if not delayed and not late else []
    if "terrain" in out.manifest.get("conditions", {}):
        items.append(
            "The ground is stated from its easiest to its hardest row. "
            + (
                "Robots get to the next row as they manage one; how far they got is not stated: see `level_terrain` in "
                "the run's metrics."
                if task.has_levels
                else "Robots get another row in each episode."
            )
        )
    if motors:
        items.append(
            "Simulated motors are no part of the bundle: the robot's drives get joint targets, kp, kd and effort. The "
            "simulated torque was not compared with these, from which the models differ."
        )
    items += [f"**Trained without {', without '.join(without)}.**"] if without else []
    if contract["command"]:
        clip = "clip them to `robot.command_low` and `robot.command_high`"
        items.append(f"The runtime does not limit commands to these ranges: {clip}.")
    return ["## Conditions in training", table(("What", "Range"), rows), bullets(items)]


def ground_rows(terrain: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The kinds of ground, from the easiest to the hardest row; which of them a robot got to depends on how it did."""
    rows = []
    for kind, entry in terrain.items():
        parts = [f"{100 * entry['share']:g} % of the columns"]
        for name, value in entry.items():
            if name != "share":
                unit = "degrees" if name == "slope" else "m"
                plain = span(*value) if isinstance(value, list) else f"{value:g}"
                parts.append(f"{name.replace('_', ' ')} {plain} {unit}")
        rows.append((f"ground, {kind.replace('_', ' ')}", ", ".join(parts)))
    return rows


def _sensed(name: str, each: Sensing, unit: str, dt: float) -> list[tuple[str, str]]:
    """What happened in training to an observation before it arrived."""
    of = "the sensors not named" if name == POLICY else f"`{name}`"
    stated = each.stated()
    rows = []
    if "bias" in stated:
        rows.append((f"bias of {of}", f"{span(*each.bias)} {unit}".rstrip()))
    if "slow" in stated:
        rows.append(
            (
                f"slow noise on {of}",
                f"{each.slow[0]:g} {unit}".rstrip() + f", time constant {each.slow[1]:g} s",
            )
        )
    if "dropout" in stated:
        rows.append((f"drop-outs of {of}", f"{100 * each.dropout:g} % of the control steps"))
    if "delay" in stated:
        ms = span(*(1e3 * dt * count for count in each.delay))
        rows.append((f"delay of {of}", f"{span(*each.delay)} control steps ({ms} ms)"))
    return rows


def _varies(task: Any) -> bool:
    """Whether a physical parameter, not an error of the sensors, is drawn at random."""
    ranges = {name: each.range for name, each in task.randomize.items() if name not in SENSOR_ERRORS}
    return any(low < high for low, high in ranges.values())


def _grown(task: Any, curriculum: str) -> str:
    """How far a curriculum scales what it is of: how far it came is not known."""
    level = task.curricula.get(curriculum)
    if level is None or level.off:
        return ""
    first = f"at first {level.start:g} times of it; " if level.start else ""
    return f"; {first}while training succeeded, up to {level.most:g} times of all this"


def _parameter(name: str) -> str:
    """What a physical parameter or an error of the sensors is, in words."""
    if name in SENSOR_ERRORS:
        return SENSOR_ERRORS[name]
    meaning, (entity, _, rest) = PARAMETERS[changed_by(name)].meaning, name.partition("/")
    selector = rest.partition("/")[2]
    return meaning + f", of {entity}" * bool(rest) + f" ({selector})" * bool(selector)


def _newest(item: dict[str, Any]) -> str:
    """The columns of an observation; of one with a history, those of its newest sample, which is the last."""
    samples = item["history"]
    if samples == 1:
        return f"columns {columns(item)}"
    width = item["width"] // samples
    last = {**item, "column": item["column"] + item["width"] - width, "width": width}
    return f"columns {columns(last)}, the newest of {samples} samples"


def _before(out: Export) -> list[str]:
    """Checks by hand, in order."""
    contract = out.manifest["contract"]
    seen = {item["name"]: f"`{item['name']}`, {_newest(item)}" for item in contract["observations"]}
    looks = "\n".join(f"   - {seen[name]}: {BY_HAND[name]}." for name in seen if name in BY_HAND)
    base = not {"projected_gravity", "base_ang_vel"}.isdisjoint(seen)
    first = ["on a gantry, rope slack, feet on the ground"] * base
    if contract["command"]:
        first.append("the pose of the end effector as command" if "pose_commands" in seen else "command 0")
    first.append("a hand on the emergency stop")
    axes = " (base axes: x forward, y left, z up)" * base
    fill = {
        "axes": axes,
        "looks": looks,
        "first": ", ".join(first),
        "keeps": ", ".join(entry["name"] for entry in out.manifest["state"]) or "state",
    }
    return ["## Before it moves", CHECKS.format(**fill)]


def _contract(out: Export) -> list[str]:
    return agreement(out.manifest, HOME_PICTURE if out.drawn else "")


def _use(out: Export) -> list[str]:
    runtime, needs = "onnxruntime", "onnxruntime or tensorrt"
    if out.manifest["controller"]["precision"] == "bf16":
        runtime = needs = "tensorrt"
    names = out.manifest["contract"]["command"]
    command = ", ".join(names if "qw" in names else ["0.0"] * len(names))  # no quaternion is 0
    short = {"quat": "q", "gyro": "w", "joint_pos": "p", "joint_vel": "v"}
    measured = [sensor["name"] for sensor in out.manifest["sensors"]]
    sensors = ", ".join(f'"{name}": {short.get(name, name)}' for name in measured)
    return [
        "## On the robot's computer",
        USE.format(needs=needs, runtime=runtime, period=1e3 / rate(out), command=command, sensors=sensors),
        *(f"Profile {name}: {', '.join(files)}." for name, files in out.profiles.items()),
    ]


def returns(out: Export) -> str:
    """A sentence with the mean returns of the closed loop."""
    return (
        f"Closed loop: mean return {out.gap.trained_return:.4f} trained, {out.gap.bundle_return:.4f} bundle"
    )


def _closing(out: Export) -> str:
    apart = (
        f"Joint targets within {out.gap.target_difference:.1e} of their range in every step of every robot."
    )
    return f"{returns(out)}, allowed ±{100 * LIMIT:g} %. {apart} {_fall(out)}"


def _fall(out: Export) -> str:
    ends = ", ".join(f"`{name}`" for name in out.checked.found.config.task.termination_terms())
    return f"What counts as a fall: {ends or 'nothing'}."


def same(out: Export, golden: str, closing: str) -> list[str]:
    """Differences between bundle and trained policy. `golden` says how golden.npz was replayed, `closing` is a
    paragraph on the closed loop."""
    parity = out.parity
    shares = {"recorded observations": parity.recorded, "observations of zero": parity.zeros}
    shares["extremes, three times the recorded magnitude"] = parity.extremes
    head = ("Compared", "Largest difference [share of max(1, largest action of the step)]", "Allowed")
    again = [(name, *(f"{value:.1e}" for value in worst.values())) for name, worst in out.golden.items()]
    cosine = f" Smallest cosine: {parity.cosine:.6f}." * (out.manifest["controller"]["precision"] != "fp32")
    return [
        "## The same policy",
        f"ONNX graph: {out.graph}. {parity.observations} observations of {parity.resets} episodes, in order.{cosine}",
        table(head, [(what, f"{share:.1e}", f"{parity.limit:.1e}") for what, share in shares.items()]),
        f"golden.npz: {golden_facts(out.manifest['golden'])} {golden}; largest absolute differences:",
        table(("Runtime", *next(iter(out.golden.values()), {})), again),
        closing,
    ]


def fast(out: Export, begins: str = "sensor readings", ends: str = "joint targets") -> list[str]:
    """Measured and modelled latency of a control step; `begins` and `ends` name its input and output."""
    best, elsewhere = out.recommendation, not out.checked.on_target
    budget = ", ".join(f"{name} {_budget(out)[kind]:g}" for kind, name in TIMES.items())
    parts = [
        "## Latency",
        f"Budget of a control step at {rate(out):g} Hz, from {begins} to {ends} [ms]: {budget}.",
        bullets(
            line for line in out.verdict.lines if not line.startswith("there: ")
        ),  # the table has these times
    ]
    if best and out.verdict.basis == "measured-on-target":
        parts.append(f"Recommended runtime: **{best.runtime}**. {best.reason}")
    elif best:
        others = [f"{e.runtime} {e.total_ms:.2f} ms" for e in out.estimates if e.runtime != best.runtime]
        parts.append(f"Try first: **{best.runtime}**{f'; the model predicts {others[0]}' if others else ''}.")
    if not out.measured:
        return parts
    rows = [
        (result["runtime"], what, *(f"{result[key][f'{kind}_ms']:.3f}" for kind in TIMES))
        for result in out.measured
        for key, what in MEASURED.items()
    ]
    where = f"Measured on {_machine(out)}{', **not the export target**' * elsewhere} [ms]."
    return [
        *parts,
        f"{where} Paced: asleep between two steps, as on a robot; hot: no pause between steps.",
        table(("Runtime", "What", *TIMES.values()), rows),
        "They say nothing about the export target, only that the runtime works at this rate on that machine."
        * elsewhere,
        f"![Histogram of the paced steps]({PICTURE})",
    ]


def appendix(out: Export) -> list[str]:
    """Every figure of budget and model, with mark and source."""
    parts = ["## Appendix: figures of budget and model"]
    parts.append(figures_table("Budget, share of the control period", vars(out.checked.target.budget)))
    for e in out.estimates:
        terms = " + ".join(f"{name} {value:.4f}" for name, value in e.terms_ms.items() if value)
        parts.append(f"Model of {e.runtime} on {target_title(out)}: {e.total_ms:.4f} ms = {terms}.")
        parts += [figures_table("Figure", e.figures), bullets(f"{note}." for note in e.notes)]
    return parts


def target_title(out: Export) -> str:
    """The export target's title; not `this machine`, which would be the reader's."""
    return "the machine it was exported on" if out.checked.target.any_machine else out.checked.target.title


def _machine(out: Export) -> str:
    """The machine of the measurements."""
    return out.checked.board or out.manifest["run"].get("machine") or "the machine it was exported on"


def rate(out: Export) -> float:
    """The control rate [Hz]."""
    return 1 / float(out.manifest["contract"]["control_dt"])


def _budget(out: Export) -> dict[str, float]:
    return out.checked.target.budget.ms(rate(out))


def _jumps(pushes: Pushes) -> str:
    """What happens to the base in a push."""
    jumps = [f"{span(*pushes.speed)} m/s, in any direction"] if pushes.speed[1] else []
    for half, axes, unit in ((pushes.box, "x, y, z", "m/s"), (pushes.turn, "roll, pitch, yaw", "rad/s")):
        if any(half):
            jumps.append(f"±[{', '.join(f'{each:g}' for each in half)}] {unit} ({axes})")
    parts = [f"the base's velocity jumps by {' and by '.join(jumps)}"] if jumps else []
    if pushes.forces:
        parts.append(
            f"a force of {span(*pushes.force)} N acts on the base for {span(*pushes.lasting)} s, in any direction"
        )
    return "; ".join(parts)


def _pushed(task: Any) -> bool:
    return task.pushes is not None and task.pushes.active
