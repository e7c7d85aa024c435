"""The requests that a container answers on its own port: ADD_BROKER, REMOVE_BROKER, and its configuration.

Codes and remarks are those of RocketMQ's `BrokerContainerProcessor`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from batonmq.common.clock import Clock
from batonmq.common.config import ConfigError, changeable_keys, keys_of, parse_properties
from batonmq.common.config_file import change_file
from batonmq.common.config_loader import NoConfigFile, update
from batonmq.common.config_values import to_properties
from batonmq.container.broker_file import Unreadable
from batonmq.container.config import ContainerConfig
from batonmq.container.container import Container
from batonmq.container.core import BrokerIdentity, split_paths
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as admin_wire
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import encode

log = logging.getLogger(__name__)

SHOWN: Final = 300
"""Most characters of a peer's text in a log line."""


class ContainerHandlers:
    """The handlers; `register` binds them to a dispatcher."""

    def __init__(
        self, container: Container, config: ContainerConfig, config_path: Path | None, clock: Clock
    ) -> None:
        """`config_path`: the container's file; changes are written to it."""
        self.config = config
        """The current configuration; a change replaces it."""
        self._container = container
        self._path = config_path
        self._clock = clock
        self._version = DataVersion()
        self._changing = asyncio.Lock()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(wire.AddBroker, self.add)
        dispatcher.on(wire.RemoveBroker, self.remove)
        dispatcher.on(admin_wire.GetBrokerConfig, self.get_config)
        dispatcher.on(admin_wire.UpdateBrokerConfig, self.update_config)

    async def add(self, request: Request, header: wire.AddBroker) -> Reply:
        peer, path = request.connection.peer, header.config_path or ""
        log.info("addBroker client=%s file=%s", peer, path[:SHOWN])
        if not path:
            raise _failed("addBroker config path is empty")
        try:
            await self._container.add(path, directories=self._directories_for(path))
        except NoConfigFile:
            # A request may name any file that this process can read: answer and log show no contents.
            log.warning("addBroker client=%s: %s is not a configuration file", peer, path[:SHOWN])
            raise _failed(f"addBroker properties empty: {path} is not a configuration file") from None
        except Unreadable as error:
            log.warning("addBroker client=%s: %s", peer, error)
            raise _failed(f"addBroker properties empty: {error}") from None
        except ConfigError as error:
            log.warning("addBroker client=%s: %s", peer, error)
            raise _failed(str(error)) from None
        except MQError as error:
            log.warning("addBroker client=%s: %s", peer, error.remark)
            raise
        return Reply()

    async def remove(self, request: Request, header: wire.RemoveBroker) -> Reply:
        identity = BrokerIdentity(header.broker_cluster_name, header.broker_name, header.broker_id)
        log.info("removeBroker client=%s broker=%s", request.connection.peer, identity.canonical_name[:SHOWN])
        await self._container.remove(identity)
        return Reply()

    def get_config(self, request: Request, header: admin_wire.GetBrokerConfig) -> Reply:
        version = encode(self._version).decode()
        return Reply(admin_wire.GetBrokerConfigResponse(version=version), to_properties(self.config).encode())

    async def update_config(self, request: Request, header: admin_wire.UpdateBrokerConfig) -> Reply:
        """Change keys in memory and in the container's file; if one is refused, none is changed."""
        try:
            changes = parse_properties(bytes(request.command.body).decode())
        except (UnicodeDecodeError, ConfigError) as error:
            raise _failed(f"the body is not properties text: {error}") from None
        if not self.config.protected_keys.isdisjoint(changes):
            raise MQError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        known, changeable = keys_of((ContainerConfig,)), changeable_keys(ContainerConfig)
        for key in changes:
            if key not in known:
                raise _failed(f"unknown key {key}: brokers have their own ports for changes")
            if key not in changeable:
                raise _failed(f"{key} cannot change while the container runs; set it in its file and restart")
        async with self._changing:
            try:
                config = update(self.config, changes)
            except ConfigError as error:
                raise _failed(str(error)) from None
            if self.config.namesrv_addr and not config.namesrv_addr:
                raise _failed("namesrvAddr cannot become empty while the container runs")
            log.info("configuration changed by client=%s changes=%s", request.connection.peer, changes)
            before, self.config = self.config, config
            self._version = DataVersion(timestamp=self._clock.now_ms(), counter=self._version.counter + 1)
            if config.namesrv_addr != before.namesrv_addr:
                await self._container.set_name_servers(config.namesrv_addr)
            await self._write(changes)
        return Reply()

    async def _write(self, changes: dict[str, str]) -> None:
        if self._path is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(
                None, partial(change_file, self._path, changes, make=False)
            )
        except (OSError, UnicodeDecodeError) as error:
            log.error("the configuration file cannot be written, a restart undoes the change: %s", error)
            raise _failed(
                f"in force until a restart: the configuration file cannot be written: {error}"
            ) from error

    def _directories_for(self, path: str) -> Sequence[str]:
        """The directories that the file must be in; empty: anywhere."""
        if path in split_paths(self.config.broker_config_paths):
            return ()
        return split_paths(self.config.add_broker_directories)


def _failed(remark: str) -> MQError:
    return MQError(ResponseCode.SYSTEM_ERROR, remark)
