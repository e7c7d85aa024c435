"""Writes the messages of an acting master to another master, in this process or over the network.

An acting master has a copy of its master's log and must not append to it. A message that it has to store goes
to a master in the same process (a broker container) that has the topic. Otherwise, with `enableRemoteEscape`,
it goes to another broker set of the cluster that has the topic. If neither exists, the message is refused.
The feature that wrote it keeps it and tries again, until another master, or the former one, takes it.

If an answer is lost, the message may be stored twice. If the other master has stored a message but could not
copy it to its slaves in time, the message counts as stored. Source: RocketMQ's `EscapeBridge`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from batonmq.broker.escape.core import outward, send_header, without
from batonmq.broker.escape.routes import EscapeRoutes
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.messages.internal import put
from batonmq.common.tasks import Tasks
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import Perm, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import SendMessageResponse
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from batonmq.routing.picker import QueuePicker
from batonmq.routing.routes import TopicRoute

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.appender import Waiter
    from batonmq.protocol.message.record import StoredMessage

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 3_000
"""How long another master may take to store a message."""
ATTEMPTS: Final = 3
"""Broker sets that are tried before a message is refused."""
MOST: Final = 10_000
"""Most messages on their way; further ones are refused and tried again later."""
SAFE_POLL_S: Final = 0.05
_ANYWHERE: Final = (RETRY_PREFIX, DLQ_PREFIX)
_STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class EscapeBridge:
    """One per broker; idle unless the broker acts as master."""

    def __init__(self, broker: Broker) -> None:
        config = broker.settings.broker
        self._broker = broker
        self._routes = EscapeRoutes(broker)
        self._picker = QueuePicker(start=broker.rng.randrange(1 << 16))
        self._tasks = Tasks()
        self._under_way = 0
        self._problem = ""
        """The last problem that was logged; it is not logged twice in a row."""
        self._group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self.local = 0
        """Messages that a master in this process has stored."""
        self.remote = 0
        """Messages that a master in another process has stored."""
        self.refused = 0
        """Messages that found no master and were tried again later."""

    @property
    def can_write(self) -> bool:
        """Whether another master may store messages of this broker."""
        return self._broker.settings.broker.enable_remote_escape or self._neighbour(None) is not None

    async def stop(self) -> None:
        """Cancel pending sends; their waiters are not called."""
        await self._tasks.cancel()

    def role_ending(self) -> None:
        """The broker starts or stops acting as master: routes may have changed."""
        self._routes.clear()
        self._problem = ""

    # -- messages

    def take(self, messages: Iterable[StoredMessage], waiters: Iterable[Waiter]) -> None:
        """Store these messages elsewhere; for `Appender.escape`. Each waiter is called once, with PUT_OK and
        no result, or with the reason why no master has the message."""
        for message, waiter in zip(messages, waiters, strict=True):
            if self._under_way >= MOST or not self.can_write:
                self.refused += 1
                self._log("no other master may take messages of this broker: see enableRemoteEscape")
                waiter.stored(PutStatus.SERVICE_NOT_AVAILABLE, None)
                continue
            self._under_way += 1
            self._tasks.spawn(self._take(message, waiter))

    async def _take(self, message: StoredMessage, waiter: Waiter) -> None:
        status = PutStatus.UNKNOWN_ERROR
        try:
            status = await self.put(message)
        except Exception:  # a bug; without an answer those who wait would never try again
            log.exception("a message of topic %s could not leave this broker", message.topic)
        finally:
            self._under_way -= 1
        waiter.stored(status, None)

    async def put(self, message: StoredMessage) -> PutStatus:
        """Store a message on another master; returns PUT_OK or the reason of the failure."""
        try:
            message = outward(message, self._broker.settings.broker.timer_precision_ms)
        except MessageFormatError as error:
            log.error("a message for topic %s cannot be sent to another broker: %s", message.topic, error)
            return PutStatus.MESSAGE_ILLEGAL
        neighbour = self._neighbour(message.topic)
        if neighbour is not None:
            status = await self._put_local(neighbour, message)
            if status is PutStatus.PUT_OK:
                self.local += 1
                return status
        if not self._broker.settings.broker.enable_remote_escape:
            self.refused += 1
            self._log(f"no master in this process takes messages of topic {message.topic}")
            return PutStatus.SERVICE_NOT_AVAILABLE
        if await self._put_remote(message):
            self.remote += 1
            self._problem = ""
            return PutStatus.PUT_OK
        self.refused += 1
        return PutStatus.PUT_TO_REMOTE_BROKER_FAIL

    # -- a master in this process

    def _neighbour(self, topic: str | None) -> Broker | None:
        """A master of this cluster in this process that has the topic; with None, any such master."""
        for other in self._broker.masters_beside():
            if topic is None:
                return other
            config = other.tables.topics.get(topic)
            if config is None:
                if topic.startswith(_ANYWHERE):
                    return other
            elif config.perm & Perm.WRITE and config.write_queue_nums:
                return other
        return None

    async def _put_local(self, other: Broker, message: StoredMessage) -> PutStatus:
        config = other.tables.topics.get(message.topic)
        if config is None:
            config = other.tables.topics.create_on_send_back(message.topic, 1)
        queues = config.write_queue_nums if config is not None else 1
        message = replace(
            message, queue_id=other.rng.randrange(max(1, queues)), store_host=pack_address(other.address)
        )
        try:
            stored = other.redirects.apply(message, decode_properties(message.properties))
        except (MQError, MessageFormatError) as error:
            self._log(f"{other.address} refuses a message of topic {message.topic}: {error}")
            return PutStatus.MESSAGE_ILLEGAL
        status, result = await put(other.appender, stored or message)
        while result is not None and status is not PutStatus.PUT_OK:
            if not other.role.is_master or other.role.stopping:
                return PutStatus.SERVICE_NOT_AVAILABLE
            if other.appender.is_acked(result.end_offset):
                return PutStatus.PUT_OK
            await asyncio.sleep(SAFE_POLL_S)
        return status

    # -- a master elsewhere

    async def _put_remote(self, message: StoredMessage) -> bool:
        topic, tried = message.topic, set[str]()
        problem = f"no other master of the cluster has topic {topic}"
        for _ in range(ATTEMPTS):
            now_ms = self._broker.clock.monotonic_ms()
            try:
                route = without(await self._route(topic), tried)
            except (NetError, MQError) as error:
                problem = str(error)
                break
            queue = self._picker.pick(route, topic, now_ms)
            address = None if queue is None else route.master(queue.broker_name)
            if queue is None or address is None:
                break
            failure = await self._send(message, queue.queue_id, queue.broker_name, address)
            if failure is None:
                self._picker.worked(queue.broker_name)
                return True
            problem = failure
            tried.add(address)
            self._picker.failed(queue.broker_name, now_ms)
            self._routes.forget(topic)
        if tried:
            self._routes.forget(topic)
        self._log(problem)
        return False

    async def _route(self, topic: str) -> TopicRoute:
        """Where messages of the topic can go. A broker creates a retry or dead-letter topic with its first
        message, so if no master has such a topic, any other master can take the message."""
        route = await self._routes.route(topic)
        if route.write_queues or not topic.startswith(_ANYWHERE):
            return route
        every = await self._routes.route(self._broker.settings.broker.broker_cluster_name)
        names = {queue.broker_name for queue in every.write_queues}
        queues = tuple(MessageQueue(topic, name, 0) for name in sorted(names))
        return TopicRoute(queues, (), every.brokers)

    async def _send(self, message: StoredMessage, queue_id: int, name: str, address: str) -> str | None:
        """None once the master has the message, else the reason of the failure."""
        try:
            header = send_header(message, queue_id, name, self._group)
            answer = await self._broker.client.call(
                address, header, message.body, timeout_ms=TIMEOUT_MS, accept=_STORED
            )
        except (NetError, MQError, ValueError) as error:
            return f"{address} does not take a message of topic {message.topic}: {error}"
        if not isinstance(answer.header, SendMessageResponse):
            return f"{address} does not take a message of topic {message.topic}: code {answer.code}"
        return None

    def _log(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("messages wait: %s", problem)
            self._problem = problem
