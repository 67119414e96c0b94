"""The command `report`: its options; `report.py` and `compare.py` do the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robolearn.commands.exits import OK
from robolearn.commands.options import Words
from robolearn.config.overrides import split


def report(
    words: Words = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File to write; report.html in the run folder where omitted."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare several runs, and average those that differ by seed.")
    ] = False,
    stills: Annotated[
        bool, typer.Option(help="Make pictures of the policy where the run folder holds no video.")
    ] = True,
) -> int:
    """Write a page about a run: curves, rewards, evaluation, latency, settings. It opens without a network.

    \b
    robolearn report
    robolearn report runs/humanoid_walk/2026-01-31_12-00-00 --output walk.html
    robolearn report --compare runs/a runs/b runs/c
    """
    if compare:
        from robolearn.commands.report.compare import compare as overlay

        overlay(words or [], output)
        return OK
    run, overrides = split(words)
    from robolearn.commands.report.report import report as describe

    describe(run, overrides, output, stills)
    return OK
