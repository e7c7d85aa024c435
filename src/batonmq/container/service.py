"""A broker container as a program: its port, its brokers, start and stop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path

from batonmq.broker.service import VIP_PORT_DISTANCE
from batonmq.common.addresses import local_ip
from batonmq.common.clock import Clock, SystemClock
from batonmq.common.config import ConfigError
from batonmq.container.broker_file import BrokerFile
from batonmq.container.config import ContainerConfig
from batonmq.container.container import Container
from batonmq.container.core import BrokerTable, Listener, split_paths
from batonmq.container.handlers import ContainerHandlers
from batonmq.container.in_process import InProcess
from batonmq.container.place import Place
from batonmq.container.supervisor import WorkerProcess
from batonmq.net import Dispatcher, RemotingServer
from batonmq.net.tls import TlsConfig, client_context, server_tls
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)


class ContainerService:
    """The container's port. `start` it before its `ConfiguredBrokers`."""

    def __init__(
        self,
        config: ContainerConfig,
        *,
        tls: TlsConfig | None = None,
        config_path: Path | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`tls`: for this port and all brokers. `clock` and `rng`: of the brokers in this process. Raises
        `ConfigError`."""
        self._config = config
        self._tls = tls if tls is not None else TlsConfig()
        self._server_tls = server_tls(self._tls)
        clock = clock if clock is not None else SystemClock()
        self._clock = clock
        self._rng = rng
        host, port, vip = config.bind_address, config.listen_port, config.listen_port - VIP_PORT_DISTANCE
        taken = [Listener("listenPort", host, port)]
        if config.vip_channel_enabled and port:
            taken.append(Listener(f"listenPort - {VIP_PORT_DISTANCE}", host, vip))
        self._listeners = taken
        table = BrokerTable(config.container_processes, taken)
        self.container = Container(table, config.namesrv_addr)
        self._places = self._make_places()
        self._handlers = ContainerHandlers(self.container, config, config_path, clock)
        self._servers: list[RemotingServer] = []

    @property
    def port(self) -> int:
        """The port for requests to the container; known once it listens."""
        return self._servers[0].port

    @property
    def ready_line(self) -> str:
        """The line that RocketMQ's container prints when it listens; one line for each broker follows."""
        addresses = self._config.namesrv_addr
        line = "The broker container boot success. serializeType=JSON"
        return f"{line} and name server is {addresses}" if addresses else line

    async def start(self) -> None:
        """Raises `OSError` with the port if it is in use."""
        config = self._config
        dispatcher = Dispatcher()
        self._handlers.register(dispatcher)
        try:
            for each in self._listeners:
                server = RemotingServer(dispatcher, each.host, each.port, tls=self._server_tls, key=each.key)
                await server.start()
                self._servers.append(server)
            await self.container.open(self._places)
        except BaseException:
            await self.stop()
            raise
        address = config.broker_container_ip or local_ip()
        log.info("container address=%s:%d processes=%d", address, self.port, config.container_processes)

    async def stop(self) -> None:
        """Accept no more requests and stop all brokers."""
        for server in self._servers:
            await server.stop()
        await self.container.close()

    def _make_places(self) -> list[Place]:
        count = self._config.container_processes
        if count == 1:
            return [InProcess(self._tls, self.container.ended, self._clock, self._rng)]
        client_context(self._tls)  # report an unusable TLS file here, once, not in each worker
        return [WorkerProcess(number, self._tls, self.container.ended) for number in range(1, count + 1)]


class ConfiguredBrokers:
    """Starts the brokers of `brokerConfigPaths` concurrently; those that fail are left out."""

    ready_line = ""
    """One task for each broker."""

    def __init__(self, service: ContainerService, paths: str, say: Callable[[str], None]) -> None:
        """`say` prints a line for each broker that serves."""
        self._container = service.container
        self._paths = split_paths(paths)
        self._say = say

    async def start(self) -> None:
        """Returns once each broker serves or has failed."""
        if not self._paths:
            log.info("brokerConfigPaths names no file: addBroker adds brokers")
        files = await asyncio.gather(*(self._read(path) for path in self._paths))
        # In this order: of two that claim the same port, the first one in the list gets it.
        serve = await asyncio.gather(*(self._start(file) for file in files if file is not None))
        if sum(serve) < len(self._paths):
            log.error("%d of the %d brokers of brokerConfigPaths serve", sum(serve), len(self._paths))

    async def stop(self) -> None:
        """They stop with their container."""

    async def _read(self, path: str) -> BrokerFile | None:
        try:
            return await self._container.read(path)
        except (ConfigError, MQError) as error:
            self._failed(path, error)
            return None

    async def _start(self, file: BrokerFile) -> bool:
        try:
            await self._container.start(file)
        except MQError as error:
            self._failed(str(file.path), error)
            return False
        identity = file.identity
        self._say(f"Broker [{identity.name}-{identity.broker_id}] boot success. serializeType=JSON")
        return True

    @staticmethod
    def _failed(path: str, error: ConfigError | MQError) -> None:
        text = error.remark if isinstance(error, MQError) else str(error)
        where = "" if path in text else f"{path}: "
        log.error("broker not started: %s%s; the others are not affected", where, text)
