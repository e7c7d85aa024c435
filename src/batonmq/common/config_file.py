"""Changes of a configuration file by requests: `updateNamesrvConfig`, `updateControllerConfig`,
`updateBrokerConfig`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from batonmq.common.files import replace_file
from batonmq.common.properties import with_changes

_changing = threading.Lock()
"""A name server that carries a controller has one file for both, and each is told of its own changes."""


def change_file(
    path: Path, changes: Mapping[str, str], aliases: Mapping[str, str] = {}, *, make: bool = True
) -> None:
    """Set some keys of a properties file; all else in it stays, also what other programs read there. A file
    that is not there is made, for its owner alone; not so without `make`: whoever starts from a file with
    these keys alone has defaults for all the others. `aliases`: other spellings of the keys, and the keys.
    Blocks; raises `OSError`, `UnicodeDecodeError`."""
    with _changing:
        text = path.read_text(encoding="utf-8") if path.exists() or not make else ""
        replace_file(path, with_changes(text, changes, aliases).encode(), private=True)
