"""Looks for a master that is away where no failing pull asks for the route.

That is so while a slave is read instead of its master, and for queues that were given up because the name
server forgot their whole broker set. Without this the consumer would find the master with the next ordinary
look at the routes, after up to 30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from batonmq.client.push.outages import Outages
from batonmq.client.push.tasks import log
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.routing.routes import TopicRoute
from batonmq.routing.session import Session

WATCH_INTERVAL_S = 1.0
"""One route is asked for in this time, whatever number of topics and brokers is concerned."""
MISSING_S = 600.0
"""A broker set that left the route is looked for so long. One that was removed for good must not cost a
request a second for ever; the ordinary poll still finds it."""


class RouteWatch:
    """Asks for the routes of topics of which a broker is away, one topic every `WATCH_INTERVAL_S`."""

    def __init__(
        self, session: Session, outages: Outages, queues: Callable[[], Iterable[MessageQueue]]
    ) -> None:
        """``queues``: those that are read now."""
        self._session = session
        self._outages = outages
        self._queues = queues
        self._brokers: dict[str, set[str]] = {}
        """Topic → the broker sets that were in its last route."""
        self._missing: dict[tuple[str, str], float] = {}
        """Topic and broker set → when it left the route."""
        self._turn: list[str] = []

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        before, now = self._brokers.get(topic, set()), set(route.brokers)
        time = asyncio.get_running_loop().time()
        for broker in before - now:
            self._missing[topic, broker] = time
        for broker in now:
            self._missing.pop((topic, broker), None)
        self._brokers[topic] = now

    async def run(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            topic = self._next()
            if topic is not None:
                try:
                    await self._session.refresh(topic)
                except (NetError, MQError) as error:
                    log.debug("a broker of %s is away, and its route was not refreshed: %s", topic, error)

    def _next(self) -> str | None:
        """The topic whose turn it is, of those that have a broker away."""
        concerned = self._concerned()
        self._turn = [topic for topic in self._turn if topic in concerned] or sorted(concerned)
        return self._turn.pop(0) if self._turn else None

    def _concerned(self) -> set[str]:
        now = asyncio.get_running_loop().time()
        self._missing = {key: since for key, since in self._missing.items() if now - since < MISSING_S}
        topics = {topic for topic, _ in self._missing}
        for queue in self._queues():
            route = self._session.known_route(queue.topic)
            if route is None or queue.topic in topics:
                continue
            broker = route.broker_of(queue)
            if route.master(broker) is None or self._outages.lasts(broker):
                topics.add(queue.topic)
        return topics
