"""REPORT.md: what somebody must know to decide whether the robot may run this policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.export.closed_loop import LIMIT
from robolearn.export.latency import Measurement, Verdict, verdict

if TYPE_CHECKING:
    from robolearn.export.stages import Export

PICTURE = "latency.png"

KINDS = ("p50_ms", "p99_ms", "jitter_ms", "max_ms")


def write_report(folder: Path, out: Export) -> None:
    """Write REPORT.md and, where something was measured, its histogram latency.png."""
    if out.measured:
        draw_latency(folder / PICTURE, out.measured, budget_of(out))
    (folder / "REPORT.md").write_text(report(out), encoding="utf-8")


def budget_of(out: Export) -> dict[str, float]:
    """The budget at the policy's rate [ms]."""
    return out.checked.target.budget.ms(1 / out.manifest["contract"]["control_dt"])


def draw_latency(path: Path, measured: Sequence[dict[str, Any]], budget_ms: dict[str, float]) -> None:
    """How long the paced control steps took, a histogram a runtime, with the budget's lines [ms]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 2.0 * len(measured)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, result in zip(figure.subplots(len(measured), squeeze=False)[:, 0], measured, strict=True):
        edges, counts = result["histogram"]["edges_ms"], result["histogram"]["counts"]
        axes.stairs(counts, edges, fill=True, color="tab:blue", alpha=0.7)
        for name, colour in (("p50", "tab:green"), ("p99", "tab:orange"), ("max", "tab:red")):
            got = result["paced"][f"{name}_ms"]
            axes.axvline(got, color=colour, linestyle="-", label=f"{name} {got:.3f} ms")
            axes.axvline(
                budget_ms[name], color=colour, linestyle="--", label=f"budget {budget_ms[name]:g} ms"
            )
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylabel("control steps")
        board = result["board"] or "the machine it was exported on"
        axes.set_title(f"{result['runtime']} on {board}: {result['paced']['count']} paced steps", fontsize=9)
        axes.legend(fontsize=7, ncols=3)
    axes.set_xlabel("sensor readings to targets [ms]")
    figure.savefig(path, dpi=110)


def report(out: Export) -> str:
    """The report as Markdown: the answer first, then what it stands on, then what nobody knows yet."""
    contract, target = out.manifest["contract"], out.checked.target
    rate = 1 / contract["control_dt"]
    head = [
        f"# {contract['task']} on {contract['robot']}, for {target.title}",
        "",
        (
            f"{out.manifest['made_by']} exported `{out.manifest['run']['name']}` (iteration "
            f"{out.manifest['run']['iteration']}, seed {out.manifest['run']['seed']}) in "
            f"{out.manifest['graph']['precision']}, "
            f"to run at {rate:g} Hz."
        ),
        "",
        "## In short",
        "",
        *_table(("Question", "Answer", "Known from"), _answers(out)),
    ]
    parts = [head, _not_shown(out), _same(out), _fast(out), _robot(out), _use(out)]
    return "\n".join(line for part in parts for line in (*part, "")).rstrip() + "\n"


def _answers(out: Export) -> list[tuple[str, ...]]:
    gap, parity = out.gap, out.parity
    measured = out.verdict.basis == "measured-on-target"
    fits = {
        True: "**yes**" if measured else "**probably**: the model says so",
        False: "**no**, it is over the budget"
        if measured
        else "**no**, says the model: it is over the budget",
        None: "**not known**",
    }[out.verdict.fits]
    return [
        (
            "Is it the policy that was trained?",
            f"**yes**: outputs differ by {parity.recorded:.1e} at most",
            f"{parity.observations} recorded observations",
        ),
        (
            "Does it drive the robot as trained, from raw sensors?",
            (
                f"**yes, in simulation**: return {100 * gap.mean:+.3f} %, 95 % interval {100 * gap.low:+.3f} to "
                f"{100 * gap.high:+.3f} %"
            ),
            f"{gap.starts} paired starts of {gap.seconds:g} s",
        ),
        (
            "Does it stay up?",
            f"{100 * gap.bundle_survival:.1f} % of the starts (trained policy {100 * gap.trained_survival:.1f} %)",
            "the same, under the pushes and physics of its training",
        ),
        (f"Is it fast enough for {out.checked.target.title}?", fits, _basis(out.verdict)),
    ]


def _basis(verdict: Verdict) -> str:
    return {
        "measured-on-target": "**measured on the target**",
        "measured-other-device": "measured on another device, which says nothing about the target",
        "modelled": "**a model, not a measurement**; measure on the board before it moves",
        "not-run": "nothing",
    }[verdict.basis]


def _not_shown(out: Export) -> list[str]:
    """What a decision to fly it should not take from here."""
    lines = ["## What this does not show", ""]
    if out.verdict.basis != "measured-on-target":
        lines.append(
            f"- **Nothing was measured on {out.checked.target.title}.** There: `python runtime.py measure`, with the "
            "robot's other programs running."
        )
    if out.engine:
        lines.append(f"- No TensorRT engine was built ({out.engine}). There: `python runtime.py build`.")
    lines += [
        (
            "- Closed loop means the simulator it was trained in. Whether the simulator is right about the robot is "
            "not tested here."
        ),
        "- Both sides observed without noise and without the delays of training"
        + _delays(out.manifest["contract"])
        + "; sensors, network and motors of the robot add their own.",
        (
            "- The runtime refuses sensor readings that are not finite, and limits nothing else: joint limits, torque "
            "limits, a fall and an emergency stop are the robot's own to watch."
        ),
    ]
    return [*lines, *(f"- {warning}" for warning in out.warnings)]


def _delays(contract: dict[str, Any]) -> str:
    said = [
        f"{name.replace('_', ' ')} {low} to {high} steps"
        for name in ("action_delay", "observation_delay")
        for low, high in [contract[name]]
        if high
    ]
    return f" ({', '.join(said)})" if said else ""


def _same(out: Export) -> list[str]:
    parity, gap = out.parity, out.gap
    rows = [
        ("recorded observations", f"{parity.recorded:.2e}", f"{parity.limit:.0e} of the largest action"),
        ("observations of zero", f"{parity.zeros:.2e}", "the same"),
        ("extremes, three times what was recorded", f"{parity.extremes:.2e}", "the same"),
    ]
    for runtime, worst in out.golden.items():
        for name, value in worst.items():
            rows.append((f"{name} rebuilt from raw sensors, {runtime}", f"{value:.2e}", "golden.npz"))
    return [
        "## The same policy",
        "",
        (
            f"Graph: {out.graph}. {parity.observations} observations of {parity.resets} episodes, in order; smallest "
            f"cosine between the two actions {parity.cosine:.6f}."
        ),
        "",
        *_table(("Compared", "Largest difference", "Allowed"), rows),
        "",
        (
            f"Closed loop: mean return {gap.trained_return:.4f} trained, {gap.bundle_return:.4f} from the bundle; the "
            f"95 % interval of the gap must lie within ±{100 * LIMIT:g} %."
        ),
    ]


def _fast(out: Export) -> list[str]:
    target = out.checked.target
    budget = budget_of(out)
    rate = 1 / out.manifest["contract"]["control_dt"]
    lines = [
        "## Latency",
        "",
        (
            f"Budget at {rate:g} Hz (shares of the period, ours unless the target file says otherwise): p50 "
            f"{budget['p50']:g}, p99 {budget['p99']:g}, max {budget['max']:g}, p99 - p50 {budget['jitter']:g} ms."
        ),
        "",
        *(f"- {line}" for line in out.verdict.lines),
    ]
    if out.recommendation:
        lines += ["", f"Recommended runtime: **{out.recommendation.runtime}**. {out.recommendation.reason}"]
    if out.measured:
        rows = []
        for result in out.measured:
            for kind, key in (
                ("whole step, paced", "paced"),
                ("network alone, paced", "network"),
                ("whole step, hot", "hot"),
            ):
                s = result[key]
                rows.append((result["runtime"], kind, *(f"{s[k]:.3f}" for k in KINDS)))
            rows.append((result["runtime"], "first call", f"{result['first_ms']:.3f}", "", "", ""))
            late = result["late"]
            rows.append(
                (
                    result["runtime"],
                    "begun late by",
                    *(f"{late[k]:.3f}" for k in KINDS),
                )
            )
        where = out.checked.board or "the machine it was exported on"
        about = "the target" if out.checked.on_target else "**not the target**"
        against = "" if out.checked.on_target else _elsewhere(out)
        lines += [
            "",
            f"Measured on {where}, {about} [ms]; a whole step goes from sensor readings to targets:",
            "",
            *_table(("Runtime", "What", "p50", "p99", "p99 - p50", "max"), rows),
            *(["", against] if against else []),
            "",
            f"![Histogram of the paced steps]({PICTURE})",
        ]
    if out.estimates and out.measured:
        step, alone = (out.measured[0][key]["p50_ms"] for key in ("paced", "network"))
        lines += [
            "",
            (
                f"The model is of the network alone. What runtime.py does around it comes on top: "
                f"here {step - alone:.3f} ms."
            ),
        ]
    for e in out.estimates:
        terms = ", ".join(f"{name} {value:.4f}" for name, value in e.terms_ms.items())
        lines += ["", f"Model of {e.runtime} on {target.title}: {e.total_ms:.4f} ms = {terms}.", ""]
        figures = [(f"`{name}`", f"{f.value:g}", f.mark, f.source) for name, f in e.figures.items()]
        lines += _table(("Figure", "Value", "Mark", "Source"), figures)
        lines += [f"Note: {note}." for note in e.notes]
    return lines


def _elsewhere(out: Export) -> str:
    """One sentence about what a measurement on another machine may be used for."""
    said = [verdict(out.checked.target, m.rate_hz, m) for m in map(Measurement.read, out.measured)]
    assert all(v.fits is None for v in said)
    return "These times say that the runtime works at this rate here. They say nothing about the target."


def _robot(out: Export) -> list[str]:
    contract = out.manifest["contract"]
    observed = [
        (item["name"], f"{item['column']}..{item['column'] + item['width'] - 1}", item["unit"])
        for item in contract["observations"]
    ]
    homes = {joint["name"]: joint["home"] for joint in contract["joints"]}
    motors = [
        (
            a["joint"],
            a["kind"],
            *(f"{a[k]:g}" for k in ("kp", "kd", "effort", "offset", "scale")),
            f"{homes[a['joint']]:g}",
        )
        for a in contract["actions"]
    ]
    lines = [
        "## What the robot must agree with",
        "",
        (
            "Check these by hand against the robot; a wrong order, sign or gain here is what breaks robots. All of it "
            "is in manifest.json in full precision."
        ),
        "",
        *_table(("Observation", "Columns", "Unit"), observed),
        "",
        *_table(("Actuator", "Kind", "kp", "kd", "Effort", "Offset", "Scale", "Home"), motors),
    ]
    if contract["command"]:
        ranges = out.manifest["command_ranges"]
        said = [
            f"{name} {ranges[name][0]:g} to {ranges[name][1]:g}"
            for name in contract["command"]
            if name in ranges
        ]
        lines += ["", f"Commands it was trained for (m/s, m/s, rad/s): {', '.join(said)}."]
    if contract["extra"]:
        lines += ["", f"Beside the network the runtime keeps: {', '.join(contract['extra'])}."]
    return lines


def _use(out: Export) -> list[str]:
    lines = [
        "## On the robot's computer",
        "",
        "Copy this folder. It needs Python, numpy and onnxruntime (or tensorrt), and no torch.",
        "",
        "    python runtime.py check      # the recorded control steps again, from raw sensors",
        "    python runtime.py build      # a TensorRT engine for that very machine",
        "    python runtime.py measure    # paced at the control rate, against the budget",
        "",
        (
            "`runtime.py` is a module, too: `Runtime(bundle, open_session(bundle, name)).step(sensors, command)` gives "
            "the actuators' targets."
        ),
    ]
    for name, files in out.profiles.items():
        lines += ["", f"Profile {name}: {', '.join(files)}."]
    return lines


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [tuple(str(cell).replace("|", "/") for cell in row) for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]
