"""The output of a command: tables that fit the terminal, or the same facts as JSON for scripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table

from batonmq.common.terminal import plain_console, visible

PIPE_COLUMNS = 250
_NARROW = (0, 1, 0, 0)
"""Padding of a table too wide for the terminal: one space between columns in place of two."""


class Output:
    """One command's output. With `--json` there is exactly one JSON value on stdout."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # A pipe or a file has no width to fit (unless COLUMNS says so): lines stay whole there.
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        self._console = plain_console(PIPE_COLUMNS if piped else None)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None
    ) -> None:
        """Rows under column names; as JSON a list of objects. Numbers stay numbers there."""
        if self.as_json:
            self._json([dict(zip(columns, row, strict=True)) for row in rows])
            return
        if title is not None:  # not the table's own, which is folded to the table's width
            self._console.print(visible(title), style="italic", soft_wrap=True, markup=False, highlight=False)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for at, column in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
            table.add_column(
                visible(column),
                justify="right" if numeric else "left",
                overflow="fold",
                no_wrap="address" in column.lower(),
            )
        for row in rows:
            table.add_row(*(_text(cell) for cell in row))
        whole = self._console.options.update_width(PIPE_COLUMNS)
        if self._console.measure(table, options=whole).maximum > self._console.width:
            table.padding = _NARROW
        self._console.print(table)
        if not rows:
            self._console.print("(nothing)", style="dim")

    def side_by_side(self, name: str, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Tables of one value per key: one row per key under `name`, and one column per table."""
        keys = sorted({key for table in tables.values() for key in table})
        rows = [[key, *(table.get(key, "") for table in tables.values())] for key in keys]
        self.table([name, *tables], rows)

    def facts(self, facts: Mapping[str, Any], *, title: str | None = None) -> None:
        """Names and values, one a line; as JSON one object."""
        if self.as_json:
            self._json(dict(facts))
            return
        if title:
            self._console.print(visible(title), style="bold")
        width = max((len(key) for key in facts), default=0)
        for key, value in facts.items():
            self._console.print(f"{visible(key):<{width}} : {_text(value)}")

    def done(self, sentence: str, **facts: Any) -> None:
        """What was done, in a sentence; as JSON its facts."""
        if self.as_json:
            self._json({"result": sentence, **facts})
        else:
            self._console.print(visible(sentence))

    def note(self, sentence: str) -> None:
        """What a person should know beside the result; on stderr, where scripts do not read."""
        click.echo(visible(sentence), err=True)

    def _json(self, value: Any) -> None:
        click.echo(json.dumps(value, default=str, ensure_ascii=False, indent=2))


def time_text(ms: int) -> str:
    """Wall time in UTC, with milliseconds; empty for "never". A number beyond the calendar stays one: brokers
    store whatever time of birth a client names."""
    if ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return str(ms)


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return f"{cell:.2f}"
    return visible(str(cell))
