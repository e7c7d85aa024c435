"""Files with a JSON list of topics or groups, as mqadmin reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import click

from batonmq.admin.session import AdminError
from batonmq.protocol.json import BodyError, decode

T = TypeVar("T")

json_list_option = click.option(
    "-f",
    "--filename",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a JSON list.",
)


def read_list(file: Path, kind: type[T]) -> list[T]:
    """What a file lists. Raises `AdminError` for a file that is no such list, or an empty one."""
    try:
        found = decode(file.read_bytes(), list[kind])  # type: ignore[valid-type]
    except OSError as error:
        raise AdminError(f"{file}: {error.strerror or error}") from None
    except BodyError as error:
        raise AdminError(f"{file} is no list of {kind.__name__}: {error.remark}") from None
    if not found:
        raise AdminError(f"{file} lists nothing")
    return found
