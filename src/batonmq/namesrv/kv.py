"""The key-value configuration: namespace → key → value, kept in `kvConfig.json` as RocketMQ writes it.

A change is answered once it is on disk. RocketMQ uses one namespace, ORDER_TOPIC_CONFIG: topic →
``broker:queues;broker:queues``.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from batonmq.common.config import ConfigError
from batonmq.common.files import replace_file
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import Body, BodyError, decode, encode

log = logging.getLogger(__name__)


class KVConfigFile(Body):
    """The contents of `kvConfig.json`."""

    config_table: dict[str, dict[str, str]] = {}


class KVConfig:
    """The table and its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Read the file; a missing one is an empty table. Raises `ConfigError` for one that is broken."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"kvConfigPath={self._path}: {error.strerror or error}") from None
        if not data.strip():
            return
        try:
            self._table = decode(data, KVConfigFile).config_table
        except BodyError as error:
            raise ConfigError(f"kvConfigPath={self._path}: {error.remark}") from None

    def get(self, namespace: str, key: str) -> str | None:
        """One value; None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def list(self, namespace: str) -> dict[str, str] | None:
        """All values of a namespace; None if it never had any."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. If the file cannot be written, nothing changes: raises `MQError` (SYSTEM_ERROR)."""
        async with self._writing:
            changed = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
            await self._save(changed)
        log.info("kv config: %s %s=%s", namespace, key, value)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value if it is there. Raises as `put`."""
        async with self._writing:
            if key not in self._table.get(namespace, {}):
                return
            kept = {name: value for name, value in self._table[namespace].items() if name != key}
            await self._save({**self._table, namespace: kept})
        log.info("kv config: %s %s removed", namespace, key)

    async def _save(self, table: dict[str, dict[str, str]]) -> None:
        data = encode(KVConfigFile(table))
        try:
            await asyncio.get_running_loop().run_in_executor(None, replace_file, self._path, data)
        except OSError as error:
            log.error("%s cannot be written: %s", self._path, error)
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"{self._path} cannot be written: {error.strerror or error}"
            ) from error
        self._table = table
