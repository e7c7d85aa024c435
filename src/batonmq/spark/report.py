"""The report page of a job: tables for the terminal, and the same tables with plots as one HTML file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import table as rich_table

from batonmq.common.plots import STYLE
from batonmq.common.terminal import plain_console, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("report.html.j2")
PAGE = click.Path(dir_okay=False, path_type=Path)
FILE_WIDTH = 240
"""Most columns of a table where the output is not a terminal."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts, formatted for readers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Page:
    """What a report shows."""

    title: str
    verdict: str
    """The result in one sentence."""
    ok: bool
    tables: Sequence[Table] = ()
    plots: Sequence[Figure] = field(default_factory=list)
    footer: str = ""


def duration(seconds: float) -> str:
    """For readers: ``850 ms``, ``12.3 s``, ``4 min 10 s``, ``3 h 5 min``."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(ms: int, *, exact: bool = False) -> str:
    """A time for readers, UTC; `exact`: with its milliseconds."""
    fraction = f".{ms % 1000:03}" if exact else ""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}{fraction} UTC"


def show(tables: Sequence[Table]) -> None:
    """Print tables."""
    console = plain_console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in tables:
        shown = rich_table.Table(*table.columns, title=table.title, title_justify="left")
        for row in table.rows:
            shown.add_row(*map(visible, row))
        console.print(shown)


def new_figure(height: float = 3.0) -> Figure:
    """An empty figure as wide as the page. Raises `click.ClickException` without matplotlib and jinja2."""
    try:
        import jinja2  # noqa: F401
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; reports need: pip install 'batonmq[spark,dashboard]'") from None
    mpl.use("svg")
    mpl.rcParams.update(STYLE)
    return Figure(figsize=(10, height), layout="constrained")


def write(page: Page, directory: Path) -> Path:
    """Write ``report.html`` below `directory`, which is created; returns the page's path."""
    return write_to(page, directory / "report.html")


def write_to(page: Page, path: Path) -> Path:
    """Write a page to `path`, whose directory is created; returns `path`."""
    import jinja2

    path.parent.mkdir(parents=True, exist_ok=True)
    template = jinja2.Environment(autoescape=True).from_string(TEMPLATE.read_text())
    path.write_text(template.render(page=page, plots=[svg(plot) for plot in page.plots]))
    return path


def svg(figure: Figure) -> str:
    """The figure as an element of an HTML page."""
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]
