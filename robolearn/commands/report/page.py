"""Writes a page: one HTML file with everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robolearn.commands.report.blocks import Page, Plots
from robolearn.errors import MissingError
from robolearn.files import replacing

HERE = Path(__file__).parent


def plotly_js() -> str:
    """The source of plotly.js.

    Raises:
        MissingError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingError(f"a report needs plotly ({error}): pip install 'robolearn[report]'") from error
    return str(get_plotlyjs())


def render(page: Page, plotly: str) -> str:
    """The page as HTML. Text of the user is escaped, in the markup and in the data."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingError(f"a report needs jinja2 ({error}): pip install 'robolearn[report]'") from error
    from robolearn import __version__

    source = FileSystemLoader(HERE)
    environment = Environment(
        loader=source, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Text of ours, as it is: within style and script elements HTML knows no escapes.
    ours = {name: Markup((HERE / f"page.{name}").read_text(encoding="utf-8")) for name in ("css", "js")}
    return environment.get_template("page.html").render(
        page=page,
        data=data_of(page),
        plotly=Markup(plotly),
        version=__version__,
        **ours,
    )


def data_of(page: Page) -> dict[str, Any]:
    """The curves as page.js reads them."""
    figures = [
        {
            "title": figure.title,
            "unit": figure.unit,
            "traces": list(figure.traces),
            "stacked": figure.stacked,
            "legend": figure.legend,
            "gaps": figure.gaps,
            "zero": figure.zero,
            "small": block.small,
        }
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Plots)
        for figure in block.figures
    ]
    return {"axes": [list(axis) for axis in page.axes], "x": page.x, "figures": figures}


def write(page: Page, path: Path, plotly: str) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = render(page, plotly)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
