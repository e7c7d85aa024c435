"""Keeps this client a member of its group: heartbeats to the brokers, and unregistering at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from batonmq.client.filter_check import check_subscription
from batonmq.client.producer_heartbeats import HEARTBEAT_INTERVAL_S
from batonmq.client.push.subscriptions import Subscribed
from batonmq.client.push.tasks import log
from batonmq.client.session import ClientSession
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.clients import Heartbeat, UnregisterClient
from batonmq.protocol.json import encode
from batonmq.routing.routes import TopicRoute


async def find_topics(session: ClientSession, group: str, subscriptions: Mapping[str, Subscribed]) -> None:
    """Ask for the routes of all topics, and brokers to check the expressions. A topic that does not exist is
    waited for, as RocketMQ's push consumers do: it is asked for again with the other routes.

    Raises `NoNameServer`, and as `check_subscription`.
    """
    for topic, subscription in subscriptions.items():
        try:
            await session.refresh(topic)
        except TopicNotExistError:
            log.warning("topic %s does not exist yet: consumer group %s waits for it", topic, group)
            session.poll(topic)
        else:
            await check_subscription(session, session.client_id, group, subscription.data)


class Heartbeats:
    """Sends what this client consumes to all brokers of the subscribed topics."""

    def __init__(
        self,
        session: ClientSession,
        group: str,
        subscriptions: Mapping[str, Subscribed],
        model: MessageModel,
        from_where: ConsumeFromWhere,
        consume_type: ConsumeType = ConsumeType.PASSIVELY,
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._model = model
        self._from_where = from_where
        self._consume_type = consume_type
        self._known: set[str] = set()
        """Brokers that know us."""
        self._refused: dict[str, str] = {}
        """Broker -> why it refused the last heartbeat: logged once, not every half minute."""
        self._now = asyncio.Event()

    def soon(self) -> None:
        """A broker seems not to know us: do not wait for the next turn."""
        self._now.set()

    def route_changed(self, route: TopicRoute) -> None:
        if not route.addresses() <= self._known:
            self._now.set()  # a broker that does not know us refuses our pulls

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._now.wait()
            self._now.clear()
            await self.send()

    async def send(self) -> None:
        """One heartbeat to every broker."""
        data = HeartbeatData(
            self._session.client_id,
            consumer_data_set=[
                ConsumerData(
                    self._group,
                    self._consume_type,
                    self._model,
                    self._from_where,
                    [subscription.data for subscription in self._subscriptions.values()],
                )
            ],
        )
        body = encode(data)

        async def send_to(address: str) -> None:
            try:
                await self._session.net.call(address, Heartbeat(), body)
                self._known.add(address)
                self._refused.pop(address, None)
            except NetError as error:
                self._known.discard(address)
                log.info("heartbeat to %s: %s", address, error)
            except MQError as error:
                self._known.discard(address)
                if self._refused.get(address) != str(error):
                    log.warning("group %s is refused by %s: %s", self._group, address, error)
                self._refused[address] = str(error)

        await asyncio.gather(*map(send_to, self._addresses()))

    def _addresses(self) -> set[str]:
        routes = filter(None, map(self._session.known_route, self._subscriptions))
        return {address for route in routes for address in route.addresses()}

    async def unregister(self) -> None:
        """Leave the group."""
        request = UnregisterClient(self._session.client_id, consumer_group=self._group)
        connections = filter(None, map(self._session.net.connected, self._known))
        answers = await asyncio.gather(
            *(connection.call(request, timeout_ms=1_000) for connection in connections),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                log.info("unregister: %s", answer)
