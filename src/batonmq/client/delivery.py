"""One send: its attempts at brokers, until one acknowledges it or its time is over.

After any failure the route is requested again at once. The next attempt follows at once on another broker or
on the new master, otherwise within 20 ms. So a broker set that lost its master is used again as soon as the
name server knows the next one. A master that does not answer is left as soon as there is another one
(`routing/overdue.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from batonmq.client.errors import NotSafelyStored, SendFailed
from batonmq.client.hooks import Sending
from batonmq.client.message import Message, SendResult, SendStatus
from batonmq.client.producer_heartbeats import ProducerHeartbeats
from batonmq.client.session import ClientSession
from batonmq.client.sharding import queue_of_key
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError, error_for
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.send import SendMessageResponse
from batonmq.protocol.message.properties import (
    PROPERTY_MSG_REGION,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TRACE_SWITCH,
)
from batonmq.protocol.send.request import send_ext
from batonmq.routing.overdue import OverdueCalls
from batonmq.routing.picker import QueuePicker
from batonmq.routing.routes import TopicRoute
from batonmq.routing.session import OUTAGE_POLL_S

log = logging.getLogger("batonmq.client.producer")

FIRST_PAUSE_S = 0.0025
"""Doubled before each wait for a new master, up to `OUTAGE_POLL_S`: a planned switch takes some 10 ms."""

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Picks the queue of a message among those that can be written to now, or among all logical queues."""

_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message or a batch, encoded."""

    head: Message
    """Its topic and properties are sent."""
    code: int
    sys_flag: int
    body: bytes | memoryview
    message_id: str


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """How the queue is chosen: by the caller, by its selector, by the sharding key, or else by turns."""

    leading: Message
    """The message whose queue is looked for: of a batch the first one."""
    queue: MessageQueue | None = None
    selector: Selector | None = None

    @property
    def made(self) -> bool:
        """The caller or a key decides, so that the message cannot go to any queue."""
        return self.queue is not None or self.selector is not None or self.leading.sharding_key is not None


@dataclass(slots=True)
class _Send:
    """One send under way."""

    outgoing: Outgoing
    choice: QueueChoice
    deadline: float
    route: TopicRoute | None
    command: Command
    properties: str
    born: str
    system: Mapping[str, str]
    sending: Sending | None
    attempts: int = 0
    refusals: int = 0
    pauses: int = 0
    failed: set[str] = field(default_factory=set)
    """Masters that failed since the last pause."""
    avoid: str | None = None
    """The broker set that failed last."""
    maybe_stored: bool = False
    failure: Exception | None = None

    def given_up(self, reason: Exception | None) -> SendFailed:
        return SendFailed(self.outgoing.head.topic, self.attempts, reason, self.maybe_stored)


class Delivery:
    """The sends of one producer.

    ``retries``: attempts after the first that a broker's own refusal may cost. ``attempt_timeout_ms``: how
    long one attempt waits for its answer; None is all that is left.
    """

    def __init__(
        self,
        session: ClientSession,
        group: str,
        picker: QueuePicker,
        calls: OverdueCalls,
        heartbeats: ProducerHeartbeats,
        *,
        retries: int,
        attempt_timeout_ms: int | None,
        auto_create: bool,
    ) -> None:
        self._session = session
        self._group = group
        self._picker = picker
        self._calls = calls
        self._heartbeats = heartbeats
        self._retries = retries
        self._attempt_timeout_ms = attempt_timeout_ms
        self._auto_create = auto_create

    async def send(
        self,
        outgoing: Outgoing,
        choice: QueueChoice,
        timeout_ms: float,
        system: Mapping[str, str],
        sending: Sending | None,
    ) -> SendResult:
        """Raises what `Producer.send` raises. `sending` gets the address of the broker that took it."""
        loop = asyncio.get_running_loop()
        session, topic = self._session, outgoing.head.topic
        route = session.known_route(topic)
        send = _Send(
            outgoing,
            choice,
            loop.time() + timeout_ms / 1000,
            # A permission may have changed since.
            None if route is not None and route.read_only else route,
            Command(outgoing.code, binary=True),
            outgoing.head.encoded_properties(system).decode(),
            str(session.clock.now_ms()),
            system,
            sending,
        )
        while True:
            if session.closed:
                raise send.given_up(session.closed_error()) from send.failure
            if send.route is None:
                await self._refresh(send)
            route = send.route
            if route is not None and choice.queue is None:
                check_writable(topic, route)
            target = self.target(route, choice, send.avoid) if route is not None else None
            broker = route.broker_of(target) if route is not None and target is not None else ""
            address = route.master(broker) if route is not None else None
            left_ms = (send.deadline - loop.time()) * 1000
            if left_ms <= 0:
                raise send.given_up(send.failure) from send.failure
            if target is not None and address is not None:
                result = await self._attempt(send, target, broker, address, left_ms)
                if result is not None:
                    return result
            elif send.failure is None:
                send.failure = no_master(topic, route, target)
            await self._before_the_next(send, target, address)

    def target(self, route: TopicRoute, choice: QueueChoice, avoid: str | None = None) -> MessageQueue | None:
        """The queue to send to; None if there is none. ``avoid``: a broker set that is not taken by turns."""
        message = choice.leading
        if choice.queue is not None:
            return choice.queue
        if choice.selector is not None:
            return choice.selector(route.key_queues, message) if route.key_queues else None
        if message.sharding_key is not None:
            return queue_of_key(route.key_queues, message.sharding_key) if route.key_queues else None
        return self._picker.pick(route, message.topic, self._session.clock.monotonic_ms(), avoid)

    async def _attempt(
        self, send: _Send, target: MessageQueue, broker: str, address: str, left_ms: float
    ) -> SendResult | None:
        """Ask one broker; None if it failed and the send continues."""
        outgoing, loop = send.outgoing, asyncio.get_running_loop()
        send.attempts += 1
        send.command.ext.clear()
        send.command.ext.update(
            send_ext(
                self._group,
                outgoing.head.topic,
                broker,
                target.queue_id,
                sys_flag=outgoing.sys_flag,
                born_timestamp=send.born,
                flag=outgoing.head.flag,
                properties=send.properties,
                batch=outgoing.code == RequestCode.SEND_BATCH_MESSAGE,
            )
        )
        wait_ms = left_ms if self._attempt_timeout_ms is None else min(left_ms, self._attempt_timeout_ms)
        number, began = self._calls.began(outgoing.head.topic), loop.time()
        try:
            if PROPERTY_REPLY_TO_CLIENT in send.system:
                # A broker passes replies on to clients it knows.
                if not await self._heartbeats.greet(address, wait_ms):
                    raise ConnectFailed(address, "does not answer")
                wait_ms = max(1.0, wait_ms - (loop.time() - began) * 1000)
            answer = await self._session.net.invoke(
                address, send.command, body=outgoing.body, timeout_ms=wait_ms
            )
            status = _STATUS.get(answer.code)
            if status is None:
                raise error_for(answer.code, answer.remark, answer.ext)
            if send.sending is not None:
                send.sending.address = address
            self._picker.worked(broker)
            return _result(status, answer, outgoing.message_id, target, broker)
        except NetError as error:
            send.maybe_stored = send.maybe_stored or error.sent
            send.failure = error
        except MQError as error:
            elsewhere = error.code == ResponseCode.NO_PERMISSION and not send.choice.made
            if not error.retryable and not elsewhere:
                raise
            if not error.stale_route or isinstance(error, TopicNotExistError):
                send.refusals += 1
                if send.refusals > self._retries:
                    raise
            send.failure = error
        finally:
            self._calls.ended(number)
        log.debug("send to %s at %s failed: %s", target, address, send.failure)
        self._picker.failed(broker, self._session.clock.monotonic_ms())
        send.avoid = broker
        return None

    async def _before_the_next(self, send: _Send, target: MessageQueue | None, address: str | None) -> None:
        """After a failure: find another broker, or the new master, or else pause."""
        route, choice = send.route, send.choice
        fixed = choice.queue is not None or (choice.made and route is not None and route.is_static)
        another = route is not None and not fixed and self._another(route, send.avoid)
        first = address is not None and address not in send.failed
        if first or another:
            await self._refresh(send)
        if address is not None and first:
            send.failed.add(address)
            route = send.route
            moved = (
                route.master(route.broker_of(target)) if route is not None and target is not None else None
            )
            another = another or (moved is not None and moved not in send.failed)
        if not another:
            # What was known before the pause may have changed in it.
            send.route = None
            send.pauses += 1
            pause_s = min(OUTAGE_POLL_S, FIRST_PAUSE_S * 2**send.pauses)
            left_s = send.deadline - asyncio.get_running_loop().time()
            await asyncio.sleep(min(pause_s, max(0.0, left_s)))
            send.failed.clear()

    async def _refresh(self, send: _Send) -> None:
        """Ask for the route again; without one, note why if nothing failed before."""
        try:
            send.route = await self._session.refresh_or_known(
                send.outgoing.head.topic, fallback=self._auto_create
            )
        except TopicNotExistError:
            raise
        except (NetError, MQError) as error:
            send.route = None
            send.failure = send.failure or error

    def _another(self, route: TopicRoute, failed: str | None) -> bool:
        """There is a broker that did not fail lately, so that the next attempt need not wait."""
        now_ms = self._session.clock.monotonic_ms()
        names = {route.broker_of(queue) for queue in route.write_queues}
        return any(name != failed and not self._picker.is_faulty(name, now_ms) for name in names)


def _result(
    status: SendStatus, answer: Command, message_id: str, target: MessageQueue, broker: str
) -> SendResult:
    stored = SendMessageResponse.from_ext(answer.ext)
    queue = MessageQueue(target.topic, target.broker_name, stored.queue_id)
    result = SendResult(
        status,
        message_id,
        stored.msg_id,
        queue,
        stored.queue_offset,
        broker_name=broker,
        recall_handle=stored.recall_handle,
        transaction_id=stored.transaction_id,
        region=answer.ext.get(PROPERTY_MSG_REGION),
        traced=answer.ext.get(PROPERTY_TRACE_SWITCH) != "false",
    )
    if status is not SendStatus.SEND_OK:
        raise NotSafelyStored(result)
    return result


def check_writable(topic: str, route: TopicRoute) -> None:
    """Raises `MQError` if nobody may write to the topic."""
    if route.read_only:
        raise MQError(
            ResponseCode.NO_PERMISSION,
            f"topic {topic} has no writable queue: sending to it is forbidden on "
            f"{', '.join(sorted(route.brokers))} by the topic's perm (updateTopic -p 6 allows it), by "
            "brokerPermission, or by wipeWritePerm (addWritePerm allows it)",
        )


def no_master(topic: str, route: TopicRoute | None, target: MessageQueue | None) -> ConnectFailed:
    """Nobody takes the message now. Sends wait, because a broker set may have a master soon."""
    if target is not None:
        return ConnectFailed(str(target), "has no master now")
    names = ", ".join(sorted(route.brokers)) if route is not None else ""
    where = f" at {names}; a slave, even one that acts as master, takes no messages" if names else ""
    return ConnectFailed(topic, f"has no master now{where}")
