"""Finds the brokers that may have messages for a pop consumer.

A consumer pops a broker only if that may bring something. A broker that had nothing is watched: one request
waits there until a message comes (NOTIFICATION). So a consumer waits at all brokers of all its topics at
once, and takes no message that nobody wants at that moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from batonmq.client.pop.requests import ANY_QUEUE, PopRequests
from batonmq.client.push.outages import Outages, pause
from batonmq.client.push.tasks import cancel, spawn
from batonmq.client.session import ClientSession
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.routing.routes import TopicRoute
from batonmq.routing.session import OUTAGE_POLL_S

log = logging.getLogger("batonmq.client.simple_consumer")

WATCH_MS = 5_000
"""How long one request may wait at a broker. RocketMQ's brokers can miss a message that comes just when a
request begins to wait."""
FULL_PAUSE_S = 0.5
"""A broker where too many requests wait is popped again after this time, without waiting there."""


def brokers_to_pop(topic: str, route: TopicRoute) -> list[str]:
    """Names of the brokers with queues of a topic.

    Raises `MQError` for a static topic: a pop takes messages of physical queues, RocketMQ's as well.
    """
    if route.is_static:
        raise MQError(
            ResponseCode.INVALID_PARAMETER,
            f"topic {topic} is static: its logical queues cannot be popped; consume it with Consumer",
        )
    return sorted({queue.broker_name for queue in route.read_queues})


class Source:
    """One broker of a topic."""

    def __init__(self, topic: str, broker_name: str) -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.may_have = True
        """A pop may bring something."""
        self.watched = False


class Sources:
    """The brokers of all subscribed topics; ``waiting`` says whether anybody waits for messages."""

    def __init__(
        self,
        session: ClientSession,
        requests: PopRequests,
        outages: Outages,
        subscription: Callable[[str], SubscriptionData | None],
        waiting: Callable[[], bool],
    ) -> None:
        self._session = session
        self._requests = requests
        self._outages = outages
        self._subscription = subscription
        self._waiting = waiting
        self._sources: dict[tuple[str, str], Source] = {}
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = asyncio.Event()
        """Replaced whenever it is set: some source may have messages now."""

    def all(self, topics: list[str]) -> list[Source]:
        """The sources of topics whose route is known, another one first each time.

        Raises `MQError` for a static topic.
        """
        current: dict[tuple[str, str], Source] = {}
        for topic in topics:
            route = self._session.known_route(topic)
            for name in brokers_to_pop(topic, route) if route else ():
                key = topic, name
                current[key] = self._sources.get(key) or Source(topic, name)
        self._sources = current
        self._turn += 1
        found = list(current.values())
        begin = self._turn % len(found) if found else 0
        return found[begin:] + found[:begin]

    def queues(self) -> list[MessageQueue]:
        """The sources that were asked for last, as `RouteWatch` knows brokers of topics."""
        return [MessageQueue(topic, name, ANY_QUEUE) for topic, name in self._sources]

    def empty(self, source: Source) -> None:
        """A pop brought nothing: watch the source."""
        source.may_have = False
        if not source.watched:
            source.watched = True
            spawn(self._watch(source), self._tasks)

    def notify(self) -> None:
        """Wake whoever waits."""
        self.ready.set()
        self.ready = asyncio.Event()

    async def close(self) -> None:
        await cancel(self._tasks)

    async def _watch(self, source: Source) -> None:
        try:
            while self._waiting() and self._sources.get((source.topic, source.broker_name)) is source:
                subscription = self._subscription(source.topic)
                if subscription is None:
                    return
                try:
                    if await self._requests.has_messages(source.broker_name, subscription, WATCH_MS):
                        return
                    self._outages.worked(source.broker_name, asyncio.get_running_loop().time())
                except NetError as error:
                    what = f"waiting for messages at {source.broker_name} fails"
                    await pause(
                        self._outages,
                        self._session,
                        source.topic,
                        source.broker_name,
                        what,
                        error,
                        OUTAGE_POLL_S,
                    )
                except MQError as error:
                    if error.code not in (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT):
                        log.info(
                            "waiting for messages of %s at %s: %s", source.topic, source.broker_name, error
                        )
                    await asyncio.sleep(FULL_PAUSE_S)
                    if error.stale_route:
                        await self._refresh(source.topic)
                    return  # the pop itself says what is wrong
        finally:
            source.watched = False
            source.may_have = True
            self.notify()

    async def _refresh(self, topic: str) -> None:
        try:
            await self._session.refresh(topic)
        except (NetError, MQError) as error:
            log.info("route of %s: %s", topic, error)
