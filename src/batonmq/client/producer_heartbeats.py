"""Sends a producer's heartbeats to all masters of its topics, so that brokers know it.

Brokers list producers by them, ask them about transactions, and send them the replies to their requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from batonmq.client.session import ClientSession
from batonmq.net.connection import Connection
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import HeartbeatData, ProducerData
from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.codes import MASTER_ID
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import Heartbeat, UnregisterClient
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo
from batonmq.protocol.json import decode, encode
from batonmq.routing.routes import TopicRoute

log = logging.getLogger("batonmq.client.producer")

HEARTBEAT_INTERVAL_S = 30.0
"""Of producers and consumers."""
GREETING_MS = 3_000.0
"""How long a master may take to answer a heartbeat."""


class ProducerHeartbeats:
    """Begins when the first route is known, or when it is started."""

    def __init__(self, session: ClientSession, group: str) -> None:
        self.everywhere = False
        """Greet all masters that the name servers know, not only those of known topics."""
        self._session = session
        self._group = group
        self._greeted: dict[str, Connection | None] = {}
        """Masters that know us, and the connection by which they do."""
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()

    def route_changed(self, route: TopicRoute) -> None:
        """Greet masters that do not know us; a new master asks nobody else about transactions."""
        if self._task is None:
            self.start()
        elif not self._masters(route).keys() <= self._greeted.keys():
            self._now.set()

    def start(self) -> None:
        if self._task is None and not self._session.closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def greet(self, address: str, timeout_ms: float) -> bool:
        """Make a master know us. False if it does not answer within the timeout."""
        connection = self._session.net.connected(address)
        if connection is not None and connection is self._greeted.get(address):
            return True
        return await self._greet(address, timeout_ms)

    async def close(self) -> None:
        """Leave the group."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        request = UnregisterClient(self._session.client_id, producer_group=self._group)
        connections = filter(None, map(self._session.net.connected, self._greeted))
        answers = await asyncio.gather(
            *(connection.call(request, timeout_ms=500) for connection in connections),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                log.info("unregister: %s", answer)

    async def _run(self) -> None:
        while True:
            masters: dict[str, None] = {}
            for topic in self._session.topics:
                route = self._session.known_route(topic)
                if route is not None:
                    masters |= self._masters(route)
            if self.everywhere:
                masters |= await self._all_masters()
            await asyncio.gather(*map(self._greet, masters))
            for address in self._greeted.keys() - masters.keys():
                self._greeted.pop(address)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._now.wait()
            self._now.clear()

    async def _all_masters(self) -> dict[str, None]:
        try:
            answer = await self._session.name_servers.ask(GetBrokerClusterInfo())
        except (NetError, MQError) as error:
            log.info("the brokers of the cluster are not known: %s", error)
            return {}
        sets = decode(answer.body, ClusterInfo).broker_addr_table.values()
        return dict.fromkeys(each.broker_addrs[MASTER_ID] for each in sets if MASTER_ID in each.broker_addrs)

    async def _greet(self, address: str, timeout_ms: float = GREETING_MS) -> bool:
        body = encode(HeartbeatData(self._session.client_id, producer_data_set=[ProducerData(self._group)]))
        try:
            await self._session.net.call(address, Heartbeat(), body, timeout_ms=timeout_ms)
            self._greeted[address] = self._session.net.connected(address)
        except (NetError, MQError) as error:
            self._greeted.pop(address, None)
            log.info("heartbeat to %s: %s", address, error)
            return isinstance(error, MQError)
        return True

    @staticmethod
    def _masters(route: TopicRoute) -> dict[str, None]:
        return dict.fromkeys(filter(None, map(route.master, route.brokers)))
