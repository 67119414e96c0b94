"""The `robolearn` command.

Exit codes:

    0    ok
    1    a check failed (`sim`: a gate)
    2    bad input: an option, an override, a file
    3    something optional is missing: a package, a renderer, a GPU
    4    the run failed: it diverged, or a term was not finite
    70   a bug of ours; its traceback is shown, please report it
    130  interrupted (Ctrl-C); a training run has saved a checkpoint

Nothing heavy is imported before a command's body needs it: `--help` and `list` answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from robolearn.errors import ConfigError, MissingError, RunFailed, did_you_mean, one_line

OK, FAILED, BAD_INPUT, MISSING, RUN_FAILED, BUG, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130

EPILOG = (
    "Exit codes: 0 ok, 1 a check failed, 2 bad input, 3 something optional is missing (package, renderer, GPU), "
    "4 the run failed (diverged, non-finite term), 70 a bug (with traceback), 130 interrupted."
)

app = typer.Typer(
    name="robolearn",
    help="Train robot policies on thousands of simulated robots, prove them, ship them.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Overrides = Annotated[
    list[str] | None, typer.Argument(help="key=value settings in Hydra's grammar.", show_default=False)
]
Run = Annotated[
    str | None,
    typer.Argument(help="Run folder, checkpoint or pretrained:NAME; the newest run where omitted.", show_default=False),
]
Output = Annotated[Path | None, typer.Option("--output", help="Folder to write to.", show_default=False)]


@app.command(epilog=EPILOG)
def train(
    overrides: Overrides = None,
    show: Annotated[bool, typer.Option("--show", help="Print the resolved configuration and stop.")] = False,
) -> int:
    """Train a policy.

    \b
    robolearn train task=humanoid_walk num_envs=4096
    robolearn train task=humanoid_walk task.rewards.alive=0.5 learner.learning_rate=3e-4
    robolearn train task=my_task.py:MyTask
    robolearn train resume=runs/humanoid_walk/2026-01-31_12-00-00

    Every setting, its value and what it means: robolearn train task=NAME --show
    """
    from robolearn import config

    resolved = _resolve(overrides)
    if show:
        typer.echo(config.show(resolved), nl=False)
        return OK
    from robolearn.train import train as run

    run(resolved)
    return OK


@app.command("list", epilog=EPILOG)
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="tasks, robots, backends or learners; all where omitted.", show_default=False)
    ] = None,
) -> int:
    """List tasks, robots, backends and learners, ours and those of installed packages."""
    from robolearn import registry

    wanted = kind if kind is None or kind.endswith("s") else f"{kind}s"
    if wanted is not None and wanted not in registry.KINDS:
        hint = did_you_mean(wanted, registry.KINDS)
        raise ConfigError(f"there is no kind '{wanted}'{hint} Valid: {', '.join(registry.KINDS)}")
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


def _resolve(overrides: Sequence[str] | None) -> Any:
    from robolearn import config

    return config.resolve(overrides or [])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Bad input is one line on stderr."""
    # typer vendors click from some version on; its errors are found through a class it exports.
    usage_error: Any = typer.BadParameter.__mro__[-4]
    command = typer.main.get_command(app)
    try:
        result = command.main(
            args=list(sys.argv[1:] if argv is None else argv), prog_name="robolearn", standalone_mode=False
        )
        return result if isinstance(result, int) else OK
    except ConfigError as error:
        return _fail(str(error), BAD_INPUT)
    except MissingError as error:
        return _fail(str(error), MISSING)
    except RunFailed as error:
        return _fail(str(error), RUN_FAILED)
    except usage_error as error:
        return _fail(error.format_message(), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        return BUG


def _fail(message: str, code: int) -> int:
    print(f"robolearn: {one_line(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
