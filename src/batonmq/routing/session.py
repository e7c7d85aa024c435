"""Connections to a cluster and the routes of its topics, which follow masters as they move.

A route is asked for again at once when something failed, otherwise every `poll_interval_ms`. Callers that ask
at the same time share one request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Iterable

from batonmq.common.addresses import name_server_addresses
from batonmq.common.clock import Clock, SystemClock
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Response
from batonmq.net.dispatch import Body, Dispatcher
from batonmq.net.errors import ConnectFailed, ConnectionLost, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import ClusterInfo, TopicRouteData
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo, GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.protocol.names import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES, is_light
from batonmq.protocol.registry import BrokerHeader, Header
from batonmq.protocol.signing import Credentials
from batonmq.routing.name_servers import NameServers
from batonmq.routing.routes import TopicRoute, light_route, parse_route, vanished_masters

log = logging.getLogger(__name__)

OUTAGE_POLL_S = 0.02
"""How often the route is asked for while a broker is gone: a new master is found within this time."""


class Session:
    """Connections and routes of one user of a cluster. Belongs to the event loop it is first used on.

    Args:
        namesrv: ``host:port``, several joined by ``;``, or a list of such; ValueError for anything else.
        dispatcher: serves the requests that brokers send over these connections.
        poll_interval_ms: how often known routes are asked for when nothing fails.
        remoting: a client to use instead of an own one, and only by this session; `close` closes it.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        dispatcher: Dispatcher | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        poll_interval_ms: int = 30_000,
        remoting: RemotingClient | None = None,
    ) -> None:
        addresses = name_server_addresses(namesrv)
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.rng = rng if rng is not None else random.Random()
        if remoting is None:
            remoting = RemotingClient(tls=tls, credentials=credentials)
        if dispatcher is not None:
            remoting.serve(dispatcher)
        self.net = remoting
        self.name_servers = NameServers(addresses, self.net, self.rng)
        self.on_route: Callable[[str, TopicRoute], None] | None = None
        """Called with topic and route when a route is new or different."""
        self.light_queues = False
        """Light queues have a route: every broker that the name servers know. Only for those who read
        by the offsets of the queue: its messages say other ones."""
        self.closed = False
        self._poll_interval_s = poll_interval_ms / 1000
        self._routes: dict[str, TopicRoute] = {}
        self._awaited: set[str] = set()
        """Topics that do not exist, and are asked for all the same (`poll`)."""
        self._asking: dict[tuple[str, bool], asyncio.Task[TopicRoute]] = {}
        """Requests under way, by topic and `fallback`."""
        self._poller: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close all connections. Calls under way fail."""
        self.closed = True
        tasks = [*self._asking.values(), *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.net.close()

    def closed_error(self) -> ConnectionLost:
        """What fails because this session was closed."""
        return ConnectionLost(";".join(self.name_servers.addresses), "this client is closed")

    # -- routes

    def known_route(self, topic: str) -> TopicRoute | None:
        """The last route that a name server gave, if there was one."""
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
        """Ask for a route now. ``fallback``: for an unknown topic, the brokers that create it (TBW102).

        Raises:
            TopicNotExistError: no name server knows the topic.
            NoNameServer: no name server answered.
            ConnectionLost: the session is closed, or was closed meanwhile.
        """
        if self.closed:
            raise self.closed_error()
        key = topic, fallback
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic, fallback))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        await asyncio.wait([task])  # a caller that is cancelled leaves the request to the others
        if task.cancelled():
            raise self.closed_error()
        return task.result()

    def _asked(self, key: tuple[str, bool], task: asyncio.Task[TopicRoute]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # the callers raise it; asyncio would warn where all of them were cancelled

    async def _ask(self, topic: str, fallback: bool) -> TopicRoute:
        if self.light_queues and is_light(topic):
            found = await self.name_servers.ask(GetBrokerClusterInfo())
            route = parse_route(topic, light_route(decode(found.body, ClusterInfo)))
            self._learn(topic, route)
            return route
        try:
            answer = await self.name_servers.ask(GetRouteInfo(topic))
        except TopicNotExistError:
            if not fallback:
                raise
            try:
                answer = await self.name_servers.ask(GetRouteInfo(AUTO_CREATE_TOPIC))
            except TopicNotExistError as error:
                raise TopicNotExistError(
                    error.code,
                    f"the name server knows neither topic {topic} nor a broker that would create it: none "
                    f"has registered yet, or autoCreateTopicEnable is off",
                ) from None
            route = parse_route(topic, decode(answer.body, TopicRouteData))
            queues = tuple(queue for queue in route.write_queues if queue.queue_id < DEFAULT_TOPIC_QUEUES)
            return TopicRoute(queues, (), route.brokers)
        route = parse_route(topic, decode(answer.body, TopicRouteData))
        self._learn(topic, route)
        return route

    def _learn(self, topic: str, route: TopicRoute) -> None:
        old = self._routes.get(topic)
        self._routes[topic] = route
        self._awaited.discard(topic)
        self._start_polling()
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

    def poll(self, topic: str) -> None:
        """Ask for the route of a topic that does not exist with those that are known; see `on_route`."""
        self._awaited.add(topic)
        self._start_polling()

    def _start_polling(self) -> None:
        if self._poller is None and not self.closed:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval_s)
            for topic in [*self._routes, *self._awaited]:
                try:
                    await self.refresh(topic)
                except (MQError, NetError) as error:
                    log.warning("route of %s not refreshed: %s", topic, error)

    # -- brokers

    async def call_master(
        self, broker_name: str, topic: str, header: Header, body: Body = b"", *, timeout_ms: float = 3_000
    ) -> Response:
        """Call a broker's master, following it to another replica within the timeout.

        Raises the answer's `MQError`, or the last `NetError`; `ConnectionLost` once the session is closed.
        """
        answer, _ = await self._call_following(
            broker_name, broker_name, topic, lambda route: route.master(broker_name), header, body, timeout_ms
        )
        return answer

    async def call_for(
        self,
        queue: MessageQueue,
        header: Header,
        body: Body = b"",
        *,
        timeout_ms: float = 3_000,
        reads: bool = False,
    ) -> Response:
        """Call the master of the broker that serves a queue, following both within the timeout.

        `reads`: the request changes nothing, so it is repeated also after an error that may pass. Raises the
        answer's `MQError`, or the last `NetError`.
        """
        answer, _ = await self._call_following(
            str(queue),
            queue.broker_name,
            queue.topic,
            lambda route: route.master(route.broker_of(queue)),
            header,
            body,
            timeout_ms,
            reads=reads,
        )
        return answer

    async def call_any(
        self, queue: MessageQueue, header: Header, *, timeout_ms: float = 3_000
    ) -> tuple[Response, str]:
        """As `call_for`, but call the slave with the smallest id while no master is registered, as RocketMQ's
        consumers do for offsets. Also returns the address that answered."""
        return await self._call_following(
            str(queue),
            queue.broker_name,
            queue.topic,
            lambda route: route.replica(route.broker_of(queue)),
            header,
            b"",
            timeout_ms,
        )

    async def _call_following(
        self,
        name: str,
        broker_name: str,
        topic: str,
        choose: Callable[[TopicRoute], str | None],
        header: Header,
        body: Body,
        timeout_ms: float,
        *,
        reads: bool = False,
    ) -> tuple[Response, str]:
        if isinstance(header, BrokerHeader):
            header.broker_name = broker_name
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        failure: Exception = ConnectFailed(name, "has no master")
        route = await self.route(topic)
        while True:
            if self.closed:
                raise self.closed_error() from failure
            address = choose(route)
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                raise failure
            if address is not None:
                try:
                    return await self.net.call(address, header, body, timeout_ms=left_ms), address
                except NetError as error:
                    failure = error
                except MQError as error:
                    repeated = error.retryable if reads else error.stale_route
                    if not repeated or isinstance(error, TopicNotExistError):
                        raise
                    failure = error
            await asyncio.sleep(OUTAGE_POLL_S)
            route = await self.refresh_or_known(topic)

    async def refresh_or_known(self, topic: str, *, fallback: bool = False) -> TopicRoute:
        """`refresh`; the last known route while the name servers do not give one."""
        try:
            return await self.refresh(topic, fallback=fallback)
        except (NetError, MQError):
            known = self._routes.get(topic)
            if known is None:
                raise
            return known
