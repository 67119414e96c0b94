"""The commands `export` and `deploy`: their options and exit codes; `robolearn.export` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robolearn.commands.exits import export_codes
from robolearn.commands.options import Overrides, Words
from robolearn.config.overrides import split

EXPORT_EPILOG = (
    "Exit codes: 0 ok (a missing TensorRT or GPU is a warning), 2 bad input, 3 the exported policy differs "
    "from the trained one (export, checker, parity or closed loop), 4 over the budget, measured or modelled, 5 "
    "something required is missing on this machine, 6 the engine is of another device or cannot be built, 70 a "
    "bug (shows a traceback), 130 interrupted."
)
DEPLOY_EPILOG = (
    "Exit codes: 0 ok, 1 the robot fell, 2 bad input, 3 the exported policy differs from the trained one (golden "
    "check), 4 too many deadlines missed, 5 something required is missing on this machine, 6 the engine is of another "
    "device, 70 a bug (shows a traceback), 130 interrupted."
)
TARGETS = "jetson-thor, jetson-thor-t4000, jetson-agx-orin, jetson-orin-nx, jetson-orin-nano, host"


def export(
    words: Words = None,
    target: Annotated[
        str,
        typer.Option(help=f"The robot's computer: {TARGETS} (this machine), or the path of a .yaml file."),
    ] = "host",
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the bundle; RUN/export/TARGET where omitted.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Precision of matrix products: fp32, fp16 or bf16.")
    ] = "fp32",
    profile: Annotated[
        list[str] | None, typer.Option(help="Also write files for this stack: unitree, mjlab.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Export this policy alone, of a run with several (learner.policies)."
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Control rate on the robot [Hz]; checked against the policy's rate.")
    ] = None,
    starts: Annotated[
        int, typer.Option(min=4, max=100_000, help="Paired initial states of the closed loop.")
    ] = 512,
    seconds: Annotated[
        float, typer.Option(min=0.02, max=86400, help="Length of each closed loop [s].")
    ] = 10.0,
    measure_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            max=86400,
            help="How long to measure latency on this machine, at the control rate [s]; 0: not at all.",
        ),
    ] = 10.0,
    require_engine: Annotated[
        bool, typer.Option("--require-engine", help="Fail where no TensorRT engine can be built.")
    ] = False,
    require_measured: Annotated[
        bool, typer.Option("--require-measured", help="Fail where this machine is not the export target.")
    ] = False,
    require_sim2sim: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Fail where the policy survives less in another installed simulator; a share of its own, such as 0.9.",
        ),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Sign the bundle with an ed25519 private key (PEM)."),
    ] = None,
) -> int:
    """Export a policy to a bundle for a robot: ONNX, parity, closed loop, latency against the budget.

    \b
    robolearn export --target jetson-thor pretrained:humanoid_walk
    robolearn export --target jetson-orin-nano --precision fp16 runs/humanoid_walk/2026-01-31_12-00-00

    Settings change the simulation of the closed loop, never the policy. The bundle's REPORT.md lists what was checked
    and what was not; its runtime.py checks, builds and measures on the robot's computer.
    """
    run, overrides = split(words)
    from robolearn.export.request import Request
    from robolearn.export.stages import export as make_bundle

    request = Request(
        run=run,
        overrides=tuple(overrides),
        target=target,
        precision=precision,
        rate=rate,
        output=output,
        profiles=tuple(profile or ()),
        starts=starts,
        seconds=seconds,
        measure_seconds=measure_seconds,
        require_engine=require_engine,
        require_measured=require_measured,
        require_sim2sim=require_sim2sim,
        sign=sign,
        policy=policy,
    )
    with export_codes():
        return make_bundle(request)


def deploy(
    bundle: Annotated[Path, typer.Argument(help="Folder that `robolearn export` wrote.")],
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=86400, help="Duration [s].")] = 20.0,
    runtime: Annotated[
        str | None, typer.Option(help="onnxruntime or tensorrt; the bundle's runtime where omitted.")
    ] = None,
    max_missed: Annotated[
        float, typer.Option(min=0, max=1, help="Maximum share of missed deadlines.")
    ] = 0.01,
    key: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Public ed25519 key (PEM) that the bundle must be signed with."),
    ] = None,
) -> int:
    """Run a bundle against the simulator in real time, at its control rate.

    A deadline is missed where the joint targets are more than one control period late.

    \b
    robolearn deploy runs/humanoid_walk/2026-01-31_12-00-00/export/jetson-thor
    robolearn deploy runs/humanoid_walk/2026-01-31_12-00-00/export/jetson-thor seed=3 "task.commands.forward=[1,1]"
    """
    from robolearn.export.deploy import deploy as run_bundle

    with export_codes():
        return run_bundle(bundle, overrides or [], seconds, runtime, max_missed, key)
