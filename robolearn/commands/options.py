"""Arguments and options that several commands of `robolearn` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings, in Hydra's grammar.", show_default=False),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="A run folder, a checkpoint or pretrained:NAME (the newest run where omitted), then settings.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", help="Folder to write to; the run folder where omitted.")
]
