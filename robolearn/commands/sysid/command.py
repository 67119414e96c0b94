"""The command `sysid`: its options; `run.py` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robolearn.commands.exits import CHECK_FAILED, OK


def sysid(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="robot.KEY=VALUE", help="Changes, as in robot.yaml.", show_default=False),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A log (CSV, NPZ or MCAP); may be repeated.", show_default=False),
    ] = None,
    robot: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="A robot's name, folder, MJCF or URDF file.")
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD[/SELECTOR],...",
            help="What to fit: kp, kd, armature, friction, damping, delay, encoder_bias, mass; =one after a selector "
            "makes one parameter of all that match. All joints' armature, friction, damping, kp, delay, encoder_bias "
            "where omitted.",
        ),
    ] = None,
    holdout: Annotated[
        str,
        typer.Option(
            metavar="SHARE|FILE", help="What is not fitted but checked: a share of each log, or another log."
        ),
    ] = "0.2",
    output: Annotated[
        Path | None, typer.Option(help="Folder to write to; sysid_ROBOT where omitted.", show_default=False)
    ] = None,
    timestep: Annotated[
        float | None,
        typer.Option(
            min=1e-4, max=0.02, help="Physics step [s]; the robot's own, as in training, where omitted."
        ),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(
            metavar="TARGETS,MEASUREMENTS",
            help="Topics of an MCAP file; needed where it has others than a controller's state, or /joint_states and "
            "one more.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing where the logs cannot tell all that is asked for.")
    ] = False,
) -> int:
    """Identify a robot's joints, gains, delay and masses from recorded motions, with 95 % intervals.

    Exit code 1 where the logs cannot tell a parameter, which is named and left out, or the fit or the held-out part is
    not met.

    \b
    robolearn sysid --log log.csv --robot arm
    robolearn sysid --log a.csv --log b.npz --robot unitree_go1 --fit 'armature,damping,delay,kp/*_calf_joint'
    robolearn sysid --log bag.mcap --robot unitree_g1 --topics /joint_targets,/joint_states
    robolearn sysid --log log.csv --robot my_robot/ --holdout other.csv --output identified
    """
    from robolearn.commands.sysid.run import run

    passed = run(log or [], robot, settings or [], fit, holdout, output, timestep, strict, topics)
    return OK if passed else CHECK_FAILED
