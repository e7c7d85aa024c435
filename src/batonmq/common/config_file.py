"""Changes of a configuration file by requests: `updateNamesrvConfig`, `updateControllerConfig`,
`updateBrokerConfig`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from batonmq.common.files import replace_file
from batonmq.common.properties import with_changes

_changing = threading.Lock()
"""A name server with an embedded controller has one file for both, and each changes its own keys."""


def change_file(
    path: Path, changes: Mapping[str, str], aliases: Mapping[str, str] = {}, *, make: bool = True
) -> None:
    """Set some keys of a properties file; everything else stays, also keys of other programs. A missing
    file is created, readable by its owner only. With `make=False` that is an error, because a program that
    starts from these keys alone would use defaults for all others. `aliases`: other spellings -> keys.
    Blocks; raises `OSError`, `UnicodeDecodeError`."""
    with _changing:
        text = path.read_text(encoding="utf-8") if path.exists() or not make else ""
        replace_file(path, with_changes(text, changes, aliases).encode(), private=True)
