"""What all clients share: the connections, the name servers, and the routes that were asked for.

A route is asked for again at once when something failed, otherwise every `poll_interval_ms`. Callers that ask
at the same time share one question.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import socket
import ssl
from collections.abc import Callable, Iterable

from batonmq.client.errors import NoNameServer
from batonmq.client.routes import TopicRoute, parse_route, split_addresses, vanished_masters
from batonmq.common.clock import Clock, SystemClock
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Response
from batonmq.net.dispatch import Body, Dispatcher
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, StaleRouteError, TopicNotExistError
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.protocol.names import AUTO_CREATE_TOPIC
from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)

OUTAGE_POLL_S = 0.02
"""How often the route is asked for while a broker is gone: a new master is found within this time."""
CONNECT_TIMEOUT_S = 3.0
"""How long `Session.connect` waits for a name server; between tries it rests `CONNECT_PAUSE_S`."""
CONNECT_PAUSE_S = 0.1
NAMESRV_TIMEOUT_MS = 1_000
"""How long one name server may think before the next one is asked."""

_instances = itertools.count()


def local_ip() -> str:
    """The address that this machine would use towards others; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1; nothing is sent by connecting a datagram socket
        except OSError:
            return "127.0.0.1"
        ip: str = probe.getsockname()[0]
        return ip


class Session:
    """One client's connections and routes. Belongs to the event loop it is first used on."""

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        dispatcher: Dispatcher | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        poll_interval_ms: int = 30_000,
        remoting: RemotingClient | None = None,
        ip: str | None = None,
    ) -> None:
        self.namesrv = split_addresses(namesrv)
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.rng = rng if rng is not None else random.Random()
        self.net = remoting if remoting is not None else RemotingClient(tls=tls, dispatcher=dispatcher)
        self.ip = ip if ip is not None else local_ip()
        self.client_id = f"{self.ip}@{os.getpid()}#{next(_instances)}#{self.rng.getrandbits(32)}"
        """Unlike any other client's; brokers and rebalance know the client by it."""
        self.on_route: Callable[[str, TopicRoute], None] | None = None
        """Called with topic and route when a route is new or different."""
        self.closed = False
        self._poll_interval_s = poll_interval_ms / 1000
        self._routes: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._namesrv_index = self.rng.randrange(len(self.namesrv))
        self._poller: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close all connections. Calls under way fail."""
        self.closed = True
        tasks = [*self._asking.values(), *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.net.close()

    # -- name servers

    async def ask_namesrv(self, header: Header, body: Body = b"", *, timeout_ms: float = 3_000) -> Response:
        """Ask the name servers one after the other until one answers.

        Raises the answer's `MQError`, or `NoNameServer` when none answered.
        """
        problems: list[tuple[str, str]] = []
        for _ in range(len(self.namesrv)):
            address = self.namesrv[self._namesrv_index]
            try:
                return await self.net.call(
                    address, header, body, timeout_ms=min(timeout_ms, NAMESRV_TIMEOUT_MS)
                )
            except NetError as error:
                problems.append((address, error.reason))
                self._namesrv_index = (self._namesrv_index + 1) % len(self.namesrv)
        raise NoNameServer(problems)

    async def connect(self) -> None:
        """See that a name server answers, within a few seconds, so that a wrong address is told at the start
        and not with the first message. One that is just coming up is waited for as long.

        Raises `NoNameServer`; whoever owns the session closes it then.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_TIMEOUT_S
        while True:
            problems = await self._problems(max(0.1, deadline - loop.time()))
            if not problems:
                return
            if loop.time() + CONNECT_PAUSE_S >= deadline:
                raise NoNameServer(problems)
            await asyncio.sleep(CONNECT_PAUSE_S)

    async def _problems(self, timeout_s: float) -> list[tuple[str, str]]:
        """Why no name server answers, for each of them; empty as soon as one does."""
        loop = asyncio.get_running_loop()
        asking = {loop.create_task(self._problem(address, timeout_s)): address for address in self.namesrv}
        problems: list[tuple[str, str]] = []
        try:
            for earliest in asyncio.as_completed(asking):
                address, problem = await earliest
                if problem is None:
                    self._namesrv_index = self.namesrv.index(address)
                    return []
                problems.append((address, problem))
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return sorted(problems, key=lambda problem: self.namesrv.index(problem[0]))

    async def _problem(self, address: str, timeout_s: float) -> tuple[str, str | None]:
        try:
            await self.net.call(address, GetRouteInfo(AUTO_CREATE_TOPIC), timeout_ms=timeout_s * 1000)
        except NetError as error:
            return address, error.reason
        except MQError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return address, "something listens there, but it is no name server"
        return address, None

    # -- routes

    def known_route(self, topic: str) -> TopicRoute | None:
        """The route as it was last heard, if it ever was."""
        return self._routes.get(topic)

    @property
    def topics(self) -> list[str]:
        """Topics whose route is known."""
        return list(self._routes)

    async def route(self, topic: str, *, fallback: bool = False) -> TopicRoute:
        """The topic's route, asked for if it is not known. See `refresh`."""
        found = self._routes.get(topic)
        return found if found is not None else await self.refresh(topic, fallback=fallback)

    async def refresh(self, topic: str, *, fallback: bool = False) -> TopicRoute:
        """Ask for a route now. ``fallback``: an unknown topic is sent where it will be created (TBW102).

        Raises:
            TopicNotExistError: no name server knows the topic.
            NoNameServer: no name server answered.
        """
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic, fallback))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._asking.pop(topic, None)
        if not task.cancelled():
            task.exception()  # whoever asked has it; a cancelled caller must not leave it unlooked at

    async def _ask(self, topic: str, fallback: bool) -> TopicRoute:
        try:
            answer = await self.ask_namesrv(GetRouteInfo(topic))
        except TopicNotExistError:
            if not fallback:
                raise
            try:
                answer = await self.ask_namesrv(GetRouteInfo(AUTO_CREATE_TOPIC))
            except TopicNotExistError as error:
                raise TopicNotExistError(
                    error.code,
                    f"the name server knows neither topic {topic} nor a broker that would create it: none "
                    f"has registered yet, or autoCreateTopicEnable is off",
                ) from None
            route = parse_route(topic, decode(answer.body, TopicRouteData))
            return TopicRoute(
                tuple(queue for queue in route.write_queues if queue.queue_id < 4), (), route.brokers
            )
        route = parse_route(topic, decode(answer.body, TopicRouteData))
        self._learn(topic, route)
        return route

    def _learn(self, topic: str, route: TopicRoute) -> None:
        old = self._routes.get(topic)
        self._routes[topic] = route
        if self._poller is None and not self.closed:
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        if old == route:
            return
        if old is not None:
            log.info(
                "route of %s changed: %s", topic, {name: dict(ids) for name, ids in route.brokers.items()}
            )
            for address in vanished_masters(old, route):
                self.net.drop(address)
        if self.on_route is not None:
            self.on_route(topic, route)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval_s)
            for topic in list(self._routes):
                try:
                    await self.refresh(topic)
                except (MQError, NetError) as error:
                    log.warning("route of %s stays as it was: %s", topic, error)

    # -- brokers

    async def call_master(
        self, broker_name: str, topic: str, header: Header, body: Body = b"", *, timeout_ms: float = 3_000
    ) -> Response:
        """Call a broker's master, following it to another replica within the timeout.

        Raises the answer's `MQError`, or the last `NetError`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        failure: Exception = ConnectFailed(broker_name, "has no master")
        route = await self.route(topic)
        while True:
            address = route.master(broker_name)
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                raise failure
            if address is not None:
                try:
                    return await self.net.call(address, header, body, timeout_ms=left_ms)
                except (NetError, StaleRouteError) as error:
                    if isinstance(error, TopicNotExistError):
                        raise
                    failure = error
            await asyncio.sleep(OUTAGE_POLL_S)
            route = await self.refresh_or_known(topic)

    async def refresh_or_known(self, topic: str, *, fallback: bool = False) -> TopicRoute:
        """`refresh`; while the name servers cannot tell, what they told last."""
        try:
            return await self.refresh(topic, fallback=fallback)
        except (NetError, MQError):
            known = self._routes.get(topic)
            if known is None:
                raise
            return known
