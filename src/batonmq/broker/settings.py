"""The configuration of a running broker: what its file says, and what was changed since."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
    """Three immutable configurations, replaced as a whole when a key changes."""

    __slots__ = ("_changing", "_path", "broker", "ha", "listeners", "store", "version")

    def __init__(
        self, broker: BrokerConfig, store: StoreConfig, ha: HAConfig, path: Path | None = None
    ) -> None:
        """`path`: the file the configuration was read from; `change` writes it as well."""
        self.broker = broker
        self.store = store
        self.ha = ha
        self.version = DataVersion()
        """Moves with each change."""
        self.listeners: list[Callable[[BrokerConfig], None]] = []
        """Called after each change with the broker's configuration before it."""
        self._path = path
        self._changing = asyncio.Lock()
        """Memory and file take changes in the same order."""

    async def change(self, changes: Mapping[str, str], now_ms: int, epoch: int) -> None:
        """Change keys (wire spelling) of the broker and its store in memory and in the file: all of them
        or, on `ConfigError`, none. Raises OSError or UnicodeDecodeError when the file cannot be written:
        the change is in force until a restart."""
        async with self._changing:
            broker, store = update(self.broker, changes), update(self.store, changes)
            before, self.broker, self.store = self.broker, broker, store
            self.version = next_version(self.version, now_ms, epoch)
            for listener in self.listeners:
                listener(before)
            if self._path is not None:
                # A file that is gone stays gone: a restart from these keys alone would be another broker.
                change = partial(change_file, self._path, changes, make=False)
                await asyncio.get_running_loop().run_in_executor(None, change)
