"""Being a member of the group, as its brokers see it: heartbeats, and a goodbye in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from batonmq.client.push.subscriptions import Subscribed
from batonmq.client.push.tasks import log
from batonmq.client.session import ClientSession
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.clients import CheckClientConfig, Heartbeat, UnregisterClient
from batonmq.protocol.json import encode
from batonmq.protocol.tags import is_tag_type
from batonmq.routing.routes import TopicRoute

HEARTBEAT_INTERVAL_S = 30.0
_NO_FILTER = "does not support consumer to filter message"
"""What all brokers say while `enablePropertyFilter` is off. They give the code of an internal error."""


async def check_subscription(session: ClientSession, group: str, data: SubscriptionData) -> None:
    """Have a broker of the topic check an expression over properties; tags need no check.

    Raises `MQError` when the broker does not take it, the last `NetError` when no broker answered.
    """
    route = session.known_route(data.topic)
    if is_tag_type(data.expression_type) or route is None:
        return
    body = encode(CheckClientRequestBody(session.client_id, group, data))
    failure: NetError | None = None
    for address in filter(None, map(route.replica, sorted(route.brokers))):
        try:
            await session.net.call(address, CheckClientConfig(), body)
            return
        except NetError as error:
            failure = error
        except MQError as error:
            if _NO_FILTER not in error.remark:
                raise
            raise MQError(
                error.code,
                f"the broker at {address} does not filter by properties; set enablePropertyFilter=true in its"
                f" configuration ({error.remark})",
            ) from error
    if failure is not None:
        raise failure


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
            await check_subscription(session, group, subscription.data)


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
            await self.beat()

    async def beat(self) -> None:
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

        async def greet(address: str) -> None:
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

        await asyncio.gather(*map(greet, self._addresses()))

    def _addresses(self) -> set[str]:
        routes = filter(None, map(self._session.known_route, self._subscriptions))
        return {address for route in routes for address in route.addresses()}

    async def say_goodbye(self) -> None:
        """Leave the group."""
        goodbye = UnregisterClient(self._session.client_id, consumer_group=self._group)
        connections = filter(None, map(self._session.net.connected, self._known))
        answers = await asyncio.gather(
            *(connection.call(goodbye, timeout_ms=1_000) for connection in connections),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                log.info("unregister: %s", answer)
