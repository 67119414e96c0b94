"""`export --require-sim2sim`: the trained policy must survive in every other simulator that is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from robolearn.config import registry
from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.export.request import Checked
from robolearn.runtime.errors import NOT_HERE, NOT_THE_SAME, Refused
from robolearn.simulation import sim2sim
from robolearn.simulation.side import SAME_DEVICE, Request, Side, simulate
from robolearn.simulation.sim2sim import Comparison

MOST = 64
"""Largest number of paired episodes: they are whole."""

Show = Callable[[str, str, str], None]


def other_simulators(checked: Checked, show: Show) -> tuple[list[Comparison], str]:
    """Compare the policy's survival in every installed simulator with that in its own.

    Args:
        checked: the request, with `require_sim2sim`.
        show: prints the line of a stage.

    Returns:
        The comparisons, and the content of sim2sim.json.

    Raises:
        Refused: NOT_THE_SAME where it survives less than required; NOT_HERE where no other simulator can run it.
    """
    required = checked.request.require_sim2sim
    assert required is not None  # the caller has looked
    found, own = checked.found, checked.found.config.backend_name
    episodes = min(checked.request.starts, MOST)
    words = tuple(word for word in checked.request.overrides if not word.startswith(("backend=", "backend.")))
    if not any(word.startswith("device=") for word in words):
        words = (*words, SAME_DEVICE)
    own_words = tuple(word for word in checked.request.overrides if word.startswith(("backend=", "backend.")))
    reference = simulate(Request(found.name, (*words, *(own_words or (f"backend={own}",))), episodes))
    if not reference.episodes["survival"].any():
        raise Refused(
            f"--require-sim2sim: the policy survives none of {episodes} episodes in {own}, its own simulator",
            NOT_THE_SAME,
        )
    sides: list[Side] = []
    for name, entry in registry.entries("backends").items():
        if name == own or entry.hint:
            continue
        try:
            sides.append(simulate(Request(found.name, (*words, f"backend={name}"), episodes)))
        except RunFailed as error:
            raise Refused(f"--require-sim2sim: the policy fails in {name}: {error}", NOT_THE_SAME) from error
        except (ConfigError, MissingError) as error:
            show("skip", "sim-to-sim", f"not in {name}: {one_line(str(error), 200)}")
    if not sides:
        raise Refused(
            f"--require-sim2sim: no other simulator than {own} can run this policy here (robolearn list backends)",
            NOT_HERE,
        )
    comparisons = [sim2sim.compare(reference, side) for side in sides]
    for each in comparisons:
        gap = each.gaps["survival"]
        show(
            "ok" if each.survival >= required else "fail",
            "sim-to-sim",
            f"{each.other}: {100 * gap.other:.1f} % of {episodes} episodes survive, {100 * gap.reference:.1f} % in "
            f"{own}: {each.survival:.3f} of that (required {required:g})",
        )
    worst = min(comparisons, key=lambda each: each.survival)
    if worst.survival < required:
        causes = [cause.name for cause in worst.causes if cause.excluded is False]
        why = f"; not excluded as a cause: {', '.join(causes)}" if causes else ""
        raise Refused(
            f"--require-sim2sim {required:g}: in {worst.other} the policy survives {worst.survival:.3f} as often as in "
            f"{own}{why} (robolearn eval --backend {own},{worst.other} says more)",
            NOT_THE_SAME,
        )
    return comparisons, json.dumps(
        sim2sim.content(reference, comparisons, sides), indent=1, allow_nan=False
    ) + "\n"


def write(folder: Path, content: str) -> None:
    """Write sim2sim.json into the bundle."""
    (folder / sim2sim.FILE_NAME).write_text(content, encoding="utf-8")


def answer(comparisons: list[Comparison]) -> list[tuple[str, ...]]:
    """The row of the report's answers; none without a comparison."""
    if not comparisons:
        return []
    said = []
    for each in comparisons:
        gap = each.gaps["return"]
        said.append(
            f"{each.other}: survives {each.survival:.3f} as often as in {each.reference}; return {gap.mean:+.3g} "
            f"({gap.low:+.3g} to {gap.high:+.3g}) on {gap.reference:.4g}"
        )
    pairs = comparisons[0].gaps["survival"].pairs
    return [
        ("Does it work in other simulators?", "; ".join(said), f"{pairs} paired episodes, 95 % intervals")
    ]
