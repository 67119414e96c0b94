"""The `robolearn` command.

`robolearn.commands.exits` turns exceptions into exit codes. Commands import what they need in their bodies, so that
`--help` and `list` are fast.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from robolearn import __version__
from robolearn.commands import interrupts
from robolearn.commands.cluster import plan, sweep, workflow
from robolearn.commands.exits import CHECK_FAILED, MISSING, OK, ended, exit_code
from robolearn.commands.export import DEPLOY_EPILOG, EXPORT_EPILOG, deploy, export
from robolearn.commands.options import Output, Overrides, Words
from robolearn.commands.report.command import report
from robolearn.commands.sysid.command import sysid
from robolearn.config.overrides import split
from robolearn.errors import ConfigError, did_you_mean, quote

EPILOG = (
    "Exit codes: 0 ok, 1 a check failed, 2 bad input, 3 something optional is missing (package, "
    "renderer, GPU), 4 the run failed (diverged, non-finite term), 70 a bug (shows a traceback), "
    "130 interrupted."
)
WIDTH = {"max_content_width": 100}

app = typer.Typer(
    name="robolearn",
    help="Train robot policies on thousands of simulated robots, check them, export them.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], **WIDTH},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Show the help where no command is given."""
    if version:
        typer.echo(f"robolearn {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog=EPILOG, context_settings=WIDTH)
def train(
    overrides: Overrides = None,
    show: Annotated[bool, typer.Option("--show", help="Print the resolved configuration and exit.")] = False,
) -> int:
    """Train a policy.

    \b
    robolearn train task=humanoid_walk
    robolearn train task=humanoid_walk task.rewards.upright=0.5 learner.learning_rate=3e-4
    robolearn train task=my_task.py:MyTask
    robolearn train resume=runs/humanoid_walk/2026-01-31_12-00-00 max_iterations=500

    List the tasks: robolearn list tasks. Show every setting of one, with its value and meaning:
    robolearn train task=NAME --show
    """
    from robolearn import config

    resolved = config.resolve(overrides or [])
    if show:
        from robolearn.training.active import active, comments
        from robolearn.training.build import scene_of

        rows = active(resolved.task, scene=scene_of(resolved))
        typer.echo(config.show(resolved) + comments(rows), nl=False)
        return OK
    if resolved.ranks > 1 and "WORLD_SIZE" not in os.environ:  # which torchrun sets
        from robolearn.training.ranks.launch import launch

        return launch(resolved, overrides or [])
    from robolearn.commands.train import train as run

    run(resolved, config.resume_changes(overrides or [], resolved))
    return OK


app.command(epilog=EPILOG, context_settings=WIDTH)(sweep)


@app.command("list", epilog=EPILOG, context_settings=WIDTH)
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="tasks, robots, backends or learners; all where omitted.")
    ] = None,
) -> int:
    """List tasks, robots, backends, learners.

    Those of RoboLearn and of installed packages.
    """
    from robolearn.config import registry

    wanted = f"{kind}s" if kind and not kind.endswith("s") else kind
    if wanted is not None and wanted not in registry.KINDS:
        hint = did_you_mean(wanted, registry.KINDS) or "."
        raise ConfigError(f"there is no kind {quote(kind)}{hint} Valid: {', '.join(registry.KINDS)}")
    for i, each in enumerate([wanted] if wanted else registry.KINDS):
        rows = [("name", "description", "source", "available")]
        for name, description, source, available, hint in registry.describe(each):
            rows.append((name, description or "-", source, "yes" if available else f"no: {hint}"))
        typer.echo(("\n" if i else "") + each)
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
            typer.echo("  " + "  ".join([*cells, row[3]]).rstrip())
    return OK


@app.command("robot", epilog=EPILOG, context_settings=WIDTH)
def robot_(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="A robot's name, folder, MJCF or URDF file.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="robot.KEY=VALUE", help="Changes, as in robot.yaml.", show_default=False),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write a picture of the home pose here (PNG).", show_default=False)
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write a robot.yaml to edit to this folder.", show_default=False)
    ] = None,
    excite: Annotated[
        Path | None,
        typer.Option(
            help="Write joint targets that excite its joints here (CSV or NPZ).", show_default=False
        ),
    ] = None,
    period: Annotated[
        float | None,
        typer.Option(min=1e-3, max=0.1, help="Control period of --excite [s]; 0.02 unless stated."),
    ] = None,
) -> int:
    """Show what is derived from a robot's file, and check its model; exit code 1 where it has an error.

    \b
    robolearn robot my_robot.xml --picture home.png
    robolearn robot unitree_go1 robot.actuators.calf_joint.kp=60
    robolearn robot my_robot.urdf --write my_robot
    robolearn robot unitree_go1 --excite motion.csv
    """
    from robolearn.commands.robot import robot as show

    return OK if show(name, settings or [], picture, write, excite, period) else CHECK_FAILED


@app.command("eval", epilog=EPILOG, context_settings=WIDTH)
def eval_(
    words: Words = None,
    output: Output = None,
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Minimum number of episodes.")] = 512,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Simulator to use instead of the run's; several, A,B,C, are compared with the first."
        ),
    ] = None,
    gap: Annotated[
        bool, typer.Option("--gap", help="Report the difference in return from the run's simulator too.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="Write the episodes to this NPZ file, to learn from.")
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BACKEND=PATH",
            help="With several simulators: the Python of an environment where one is installed; may be repeated.",
        ),
    ] = None,
) -> int:
    """Run many episodes of the deterministic policy and write metrics.json.

    Noise, delays and commands are those of the run; settings change them.

    \b
    robolearn eval
    robolearn eval runs/humanoid_walk/2026-01-31_12-00-00 seed=7 "task.commands.forward=[1,1]"
    robolearn eval runs/humanoid_walk/2026-01-31_12-00-00 --backend mujoco_warp --gap --output out
    robolearn eval runs/humanoid_walk/2026-01-31_12-00-00 --backend mujoco,mujoco_warp --episodes 64
    """
    if backend is not None and "," in backend:
        run, overrides = split(words)
        pythons = dict(word.partition("=")[::2] for word in python or ())
        if gap or record:
            raise ConfigError(f"{'--gap' if gap else '--record'} goes with one simulator, --backend A")
        from robolearn.commands.compare_backends import compare_backends

        compare_backends(run, backend.split(","), overrides, episodes, output, pythons)
        return OK
    if python:
        raise ConfigError("--python goes with several simulators: --backend A,B")
    run, overrides = split(words, backend)
    from robolearn.commands.evaluate import evaluate

    evaluate(run, overrides, episodes=episodes, output=output, gap=gap, record=record)
    return OK


@app.command(epilog=EPILOG, context_settings=WIDTH)
def play(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|BUNDLE|KEY=VALUE",
            help="A run, a checkpoint, pretrained:NAME or a bundle (the newest run where omitted), then settings.",
            show_default=False,
        ),
    ] = None,
    video: Annotated[
        Path | None, typer.Option(help="Write this video instead of opening a viewer.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=3600, help="Length of the video [s]; 20 where omitted.", show_default=False
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="WxH", help="Size of the video; 640x480 where omitted.", show_default=False),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(help="Frames per second of the video; 25 where omitted.", show_default=False),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="With --video: YAML file with commands: and pushes: to play.", show_default=False),
    ] = None,
    opponent: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="With --video: a run or checkpoint for the other agents.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Folder of the video, this one where omitted, or of the viewer's recordings, the run folder.",
        ),
    ] = None,
    num_envs: Annotated[int, typer.Option(min=1, max=64, help="Number of robots in the viewer.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the viewer; 8080 or the next free one where omitted.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address of the viewer; 0.0.0.0 lets the network in, such as a phone.")
    ] = "127.0.0.1",
    follow: Annotated[
        bool, typer.Option("--follow", help="Switch to each new checkpoint of a run that is being trained.")
    ] = False,
) -> int:
    """Watch and drive a policy in the browser, or write a video of it. Neither needs a display.

    Without --script and task.commands settings, a robot that follows velocity commands stands, walks, turns, steps
    sideways and stops; where the task pushes, it is pushed once at the end.

    \b
    robolearn play pretrained:humanoid_walk
    robolearn play runs/humanoid_walk/2026-01-31_12-00-00 --follow
    robolearn play pretrained:humanoid_walk --video walk.mp4 --size 1280x720 --fps 50
    robolearn play runs/humanoid_walk/2026-01-31_12-00-00 --video walk.mp4 "task.commands.forward=[1,1]"
    """
    run, overrides = split(words)
    if video is None:
        of_videos = {"--seconds": seconds, "--size": size, "--fps": fps, "--script": script}
        of_videos["--opponent"] = opponent
        for option, value in of_videos.items():
            if value is not None:
                raise ConfigError(f"{option} is for a video: add --video FILE.mp4")
        from robolearn.commands.viewer.viewer import view

        view(run, overrides, num_envs=num_envs, host=host, port=port, follow=follow, output=output)
        return OK
    of_viewer = {
        "--follow": follow,
        "--port": port,
        "--num-envs": num_envs != 1,
        "--host": host != "127.0.0.1",
    }
    for option, set_ in of_viewer.items():
        if set_:
            raise ConfigError(f"{option} is for the viewer: leave --video out")
    from robolearn.commands.play.play import play as watch

    watch(
        run,
        overrides,
        video=video,
        seconds=20.0 if seconds is None else seconds,
        output=output,
        size=size,
        fps=fps,
        script=script,
        opponent=opponent,
    )
    return OK


@app.command(epilog=EPILOG, context_settings=WIDTH)
def prefer(
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="Folder of answers; a begun one is continued.")
    ],
    words: Words = None,
    pairs: Annotated[
        int, typer.Option(min=1, max=100_000, help="Answers that the folder is to hold at the end.")
    ] = 100,
    seconds: Annotated[float, typer.Option(min=0.01, max=60, help="Length of what is compared [s].")] = 2.0,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Function that answers: NAME(first, second) returns 1, 2, or 0 for equal.",
            show_default=False,
        ),
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, max=10, help="Noise of the actions, times what the policy explored with.")
    ] = 1.0,
    checkpoints: Annotated[
        int, typer.Option(min=1, max=1000, help="Checkpoints of the run that act, early to late.")
    ] = 5,
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="Size of a film; 480x360 where omitted.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the page; 8080 or the next free one where omitted."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address of the page; 0.0.0.0 lets the network in.")
    ] = "127.0.0.1",
) -> int:
    """Ask which of two films of a run's policies is better: in the browser, with the keys 1, 2, 0 and s.

    The answers train a reward: robolearn train task=... learner.preferences=FOLDER

    \b
    robolearn prefer --output preferences
    robolearn prefer runs/hopper_run/2026-01-31_12-00-00 --output preferences --pairs 200 --seconds 2
    robolearn prefer runs/hopper_run/2026-01-31_12-00-00 --output preferences --script judge.py:judge
    """
    from robolearn.commands.prefer.prefer import prefer as ask

    run, overrides = split(words)
    ask(run, overrides, output, pairs, seconds, script, noise, checkpoints, size, host, port)
    return OK


@app.command(epilog=EPILOG, context_settings=WIDTH)
def sim(
    overrides: Overrides = None,
    task: Annotated[
        str | None,
        typer.Option(help="Task to simulate; the task of --policy's run where omitted.", show_default=False),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="A run, a checkpoint, pretrained:NAME, random or zero.")
    ] = "zero",
    backend: Annotated[str, typer.Option(help="Simulator; auto: the best one installed.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, max=100_000_000, help="Control steps to simulate.")] = 1000,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed; on a CPU the same seed gives identical results.")
    ] = 1,
    num_envs: Annotated[int, typer.Option(min=1, max=1_048_576, help="Number of environments.")] = 64,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit report here.", show_default=False)] = None,
    min_real_time_factor: Annotated[
        float,
        typer.Option(min=0, max=1e9, help="Minimum simulated seconds of each robot per second of wall time."),
    ] = 1.0,
    min_survival: Annotated[
        float,
        typer.Option(min=0, max=1, help="Minimum share of robots that a trained policy keeps from falling."),
    ] = 0.9,
    suite: Annotated[
        Path | None, typer.Option(help="Run the scenarios of this YAML file instead.", show_default=False)
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="With --suite: JSON report; beside --junit where omitted.", show_default=False),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(help="With --suite: append a Markdown summary; $GITHUB_STEP_SUMMARY where omitted."),
    ] = None,
    failures: Annotated[
        Path, typer.Option(help="With --suite: folder for a replay and a video of each failed scenario.")
    ] = Path("sim_failures"),
    jobs: Annotated[
        int, typer.Option(min=0, max=1024, help="With --suite: cases at once; 0: one a core.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --suite: only this scenario; may be repeated."),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="With --suite: record its measures as the baseline.")
    ] = False,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="With --suite: skip backends that are not installed.")
    ] = False,
) -> int:
    """Simulate without a display and check gates; exit code 1 where one fails.

    The gates: no divergence, finite values, real-time factor, bit-identical repetition (on a CPU) and, for a trained
    policy, survival.

    \b
    robolearn sim --task humanoid_walk --policy zero --junit out.xml
    robolearn sim --policy runs/humanoid_walk/2026-01-31_12-00-00
    robolearn sim --suite suites/shipped.yaml --junit out.xml
    """
    if suite is not None:
        given: dict[str, object] = {
            "--min-survival": min_survival != 0.9,
            "--min-real-time-factor": min_real_time_factor != 1.0,
            "--seed": seed != 1,
            "--num-envs": num_envs != 64,
            "--task": task,
            "--policy": policy != "zero",
            "--backend": backend != "auto",
            "--steps": steps != 1000,
        }
        for option, set_ in given.items():
            if set_:
                raise ConfigError(
                    f"{option} does not go with --suite: the scenarios of {quote(str(suite))} state it"
                )
        from robolearn.commands.suite.suite import run_suite

        passed = run_suite(
            suite,
            overrides=overrides or [],
            junit=junit,
            json=json,
            summary=summary,
            failures=failures,
            jobs=jobs,
            only=only or [],
            update_baseline=update_baseline,
            skip_missing=skip_missing,
        )
        return OK if passed else CHECK_FAILED
    of_suites = {
        "--json": json,
        "--summary": summary,
        "--failures": failures != Path("sim_failures"),
        "--jobs": jobs,
        "--only": only,
        "--update-baseline": update_baseline,
        "--skip-missing": skip_missing,
    }
    for option, set_ in of_suites.items():
        if set_:
            raise ConfigError(f"{option} goes with --suite FILE.yaml")
    from robolearn.commands.sim import simulate

    passed = simulate(
        task=task,
        policy=policy,
        backend=backend,
        steps=steps,
        seed=seed,
        num_envs=num_envs,
        overrides=overrides or [],
        junit=junit,
        min_real_time_factor=min_real_time_factor,
        min_survival=min_survival,
    )
    return OK if passed else CHECK_FAILED


@app.command(epilog=EPILOG, context_settings=WIDTH)
def replay(
    file: Annotated[
        Path, typer.Argument(help="A .replay file, which `sim --suite` or a failed training wrote.")
    ],
    overrides: Overrides = None,
    video: Annotated[Path | None, typer.Option(help="Write a video of it here.", show_default=False)] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of control steps in the table; 0: all.")] = 15,
    slow: Annotated[float, typer.Option(help="How many times slower than real time the video is.")] = 4.0,
    view: Annotated[bool, typer.Option("--view", help="Step through it in the browser.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the viewer.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="Address of the viewer.")] = "127.0.0.1",
) -> int:
    """Simulate the recorded last second of a failure again, bit for bit; exit code 1 where the bits differ.

    \b
    robolearn replay sim_failures/walk-mujoco.replay --view
    robolearn replay runs/humanoid_walk/2026-01-31_12-00-00/diverged.replay --video diverged.mp4
    """
    from robolearn.commands.replay import replay as again

    same = again(file, video, rows, slow, overrides or [], view, host, port)
    return OK if same else CHECK_FAILED


app.command(epilog=EXPORT_EPILOG, context_settings=WIDTH)(export)
app.command(epilog=DEPLOY_EPILOG, context_settings=WIDTH)(deploy)


@app.command(epilog=EPILOG, context_settings=WIDTH)
def bench(
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Number of measurement rounds.")] = 7,
    warmup: Annotated[
        int, typer.Option(min=0, max=1000, help="Training iterations before the first round.")
    ] = 3,
    sizes: Annotated[
        str | None, typer.Option(help="Numbers of environments, measured one after the other: 1024,4096.")
    ] = None,
    against: Annotated[str | None, typer.Option(hidden=True)] = None,
    json: Annotated[Path | None, typer.Option(help="File for the results, as JSON.")] = None,
) -> int:
    """Measure speed and memory: raw physics, environment, inference, learning.

    \b
    robolearn bench task=humanoid_walk num_envs=4096
    robolearn bench task=humanoid_walk --sizes 1024,4096 --json bench.json
    """
    if against is not None:
        raise ConfigError(
            "bench has no --against; in the repository, python scripts/compare_update.py compares an update with "
            "rsl_rl's"
        )
    from robolearn.commands.bench.bench import bench as measure

    measure(overrides or [], rounds, warmup, sizes, json)
    return OK


app.command(epilog=EPILOG, context_settings=WIDTH)(sysid)
app.command(epilog=EPILOG, context_settings=WIDTH)(plan)
app.command(epilog=EPILOG, context_settings=WIDTH)(workflow)
app.command(epilog=EPILOG, context_settings=WIDTH)(report)


@app.command(epilog=EPILOG, context_settings=WIDTH)
def doctor(
    json: Annotated[Path | None, typer.Option(help="File for the same, as JSON.", show_default=False)] = None,
) -> int:
    """Show what this machine can do, and the command that installs what is missing.

    Exit code 3 where no training works, not even on the CPU.
    """
    from robolearn.commands.doctor import doctor as examine

    return OK if examine(json) else MISSING


@app.command("grad-check", epilog=EPILOG, context_settings=WIDTH)
def grad_check(
    overrides: Overrides = None,
    directions: Annotated[int, typer.Option(min=1, max=10_000, help="Random directions per row.")] = 16,
    envs: Annotated[int, typer.Option(min=2, max=10_000, help="Number of environments.")] = 16,
) -> int:
    """Compare gradients through the simulator with finite differences; exit code 1 where they differ.

    robolearn grad-check task=cartpole_balance backend=differentiable
    """
    from robolearn.commands.grad_check.grad_check import grad_check as compare

    return OK if compare(overrides or [], directions, envs) else CHECK_FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; `argv` without the program's name.

    Errors are one line on stderr; only a bug shows a traceback. Without `argv` it is the process's main function:
    SIGTERM interrupts it like Ctrl-C, and further signals are ignored once the exit code is known.
    """
    if argv is not None:
        return _run(argv)
    try:
        interrupts.listen()
        return ended(_run(sys.argv[1:]))
    finally:
        interrupts.ignore()
        gc.freeze()  # else the interpreter's last collections, over all of torch, take seconds


@functools.cache
def command() -> Any:
    """All commands, with their options; made once in a process, which takes longer than to read a command line."""
    return typer.main.get_command(app)


def _run(words: Sequence[str]) -> int:
    return exit_code(lambda: command().main(args=list(words), prog_name="robolearn", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(main())
