"""The configuration of a running broker: the file's values and all later changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.versions import next_version
from batonmq.common.config_file import change_file
from batonmq.common.config_loader import update
from batonmq.protocol.bodies.common import DataVersion

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.ha.config import HAConfig
    from batonmq.store.config import StoreConfig

log = logging.getLogger(__name__)


class Settings:
    """Immutable configurations; a change replaces the whole object."""

    __slots__ = ("_changing", "_path", "auth", "broker", "ha", "listeners", "store", "version")

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        ha: HAConfig,
        path: Path | None = None,
        auth: AuthConfig | None = None,
    ) -> None:
        """`path`: the configuration file; `change` rewrites it."""
        self.auth = auth if auth is not None else AuthConfig()
        """Access control. No request shows it or changes it."""
        self.broker = broker
        self.store = store
        self.ha = ha
        self.version = DataVersion()
        """Increases with every change."""
        self.listeners: list[Callable[[BrokerConfig], None]] = []
        """Called after each change with the broker's previous configuration."""
        self._path = path
        self._changing = asyncio.Lock()
        """Keeps changes in the same order in memory and in the file."""

    async def change(self, changes: Mapping[str, str], now_ms: int, epoch: int, *, keep: bool = True) -> None:
        """Change keys (wire spelling) of the broker and its store, in memory and, with `keep`, in the file.

        Raises `ConfigError`, and changes nothing, for a bad value. Raises OSError or UnicodeDecodeError if
        the file cannot be written: the change then lasts until the next restart."""
        async with self._changing:
            broker, store = update(self.broker, changes), update(self.store, changes)
            before, self.broker, self.store = self.broker, broker, store
            self.version = next_version(self.version, now_ms, epoch)
            for listener in self.listeners:
                listener(before)
            if self._path is not None and keep:
                # Do not create a missing file: it would have the changed keys only.
                change = partial(change_file, self._path, changes, make=False)
                await asyncio.get_running_loop().run_in_executor(None, change)
