"""Pulls messages into the buffers of queues, from whichever replica serves them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batonmq.client.push.assigned import Assigned
from batonmq.client.push.handling import Handling
from batonmq.client.push.heartbeats import Heartbeats
from batonmq.client.push.locks import QueueLocks
from batonmq.client.push.outages import Outages, pause
from batonmq.client.push.retries import DEAD_LETTER, SendBack
from batonmq.client.push.start_offsets import StartOffsets
from batonmq.client.push.subscriptions import Subscriptions
from batonmq.client.push.tasks import log, spawn
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.clients import MessageModel, SubscriptionData
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.buffers import Buffer
from batonmq.protocol.codes import MASTER_ID, PullSysFlag, ResponseCode
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.errors import MQError, error_for
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.logical import in_logical_queue
from batonmq.protocol.message.properties import PROPERTY_MIN_OFFSET, PROPERTY_RETRY_TOPIC
from batonmq.protocol.message.record import (
    MessageExt,
    decode_record,
    decode_records,
    inflate,
    scan_frames,
)
from batonmq.protocol.names import retry_topic
from batonmq.protocol.tags import matches
from batonmq.routing.session import OUTAGE_POLL_S, Session

SUSPEND_MS = 15_000
"""How long a broker may hold a pull that finds nothing (long polling)."""
PULL_TIMEOUT_MS = 30_000
MOVED_BACK_PATIENCE_S = 10.0
"""How long a broker must say that the queue ends before our offset until we believe it: a new master shows
the end only once its replicas have confirmed it."""
UNREADABLE_RETRY_S = 5.0
"""An answer with records that cannot be decoded is asked for again after this time."""
UNREADABLE_ATTEMPTS = 3
"""How often such an answer is asked for until its records are left out."""
REFUSED_PAUSE_S = 1.0
"""Before the next pull from a broker that refuses them, or has nothing while its master is away."""
GIVE_UP_RETRY_S = 5.0
"""A message for the dead-letter topic that its broker did not take is sent again after this time."""

_FOUND = int(ResponseCode.SUCCESS)
_NOTHING = frozenset({int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY)})
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True, slots=True)
class PullLimits:
    """How much of a queue is asked for in one pull, and how much may be held (`ProcessQueue.is_full`)."""

    batch_size: int
    max_messages: int
    max_bytes: int
    max_span: int


class Puller:
    """Keeps the buffers of queues filled; ``locks`` is None unless they are consumed in order.

    ``reset`` has queues given up and taken again at other offsets.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        subscriptions: Subscriptions,
        model: MessageModel,
        limits: PullLimits,
        *,
        start_offsets: StartOffsets,
        outages: Outages,
        heartbeats: Heartbeats,
        locks: QueueLocks | None,
        handling: Handling,
        send_back: SendBack,
        reset: Callable[[Mapping[MessageQueue, int]], None],
    ) -> None:
        self._session = session
        self._group = group
        self._retry_topic = retry_topic(group)
        self._subscriptions = subscriptions
        self._model = model
        self._limits = limits
        self._start_offsets = start_offsets
        self._outages = outages
        self._heartbeats = heartbeats
        self._locks = locks
        self._handling = handling
        self._send_back = send_back
        self._reset = reset

    async def run(self, held: Assigned) -> None:
        """Keep one queue's buffer filled, across whatever happens to its broker."""
        limits = self._limits
        while not held.dropped:
            try:
                if self._locks is not None and not await self._locks.may_work(held):
                    continue
                if held.buffer.next_offset < 0:
                    await self._start_offsets.find(held)
                if held.buffer.is_full(limits.max_messages, limits.max_bytes, limits.max_span):
                    held.room.clear()
                    await held.room.wait()
                    continue
                await self._pull(held)
            except NetError as error:
                await self._failed(held.queue, error, OUTAGE_POLL_S)
            except MQError as error:
                if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
                    self._heartbeats.soon()
                pause_s = OUTAGE_POLL_S if error.stale_route else REFUSED_PAUSE_S
                await self._failed(held.queue, error, pause_s)
            except MessageFormatError as error:
                log.error("%s at %d: %s", held.queue, held.buffer.next_offset, error)
                await asyncio.sleep(UNREADABLE_RETRY_S)

    async def _failed(self, queue: MessageQueue, error: NetError | MQError, pause_s: float) -> None:
        route = self._session.known_route(queue.topic)
        broker = (route.broker_of(queue) if route is not None else "") or queue.broker_name
        what = (
            f"of {queue.topic} from {broker} are refused"
            if isinstance(error, MQError)
            else f"from {broker} fail"
        )
        await pause(self._outages, self._session, queue.topic, broker, f"pulls {what}", error, pause_s)

    async def _refresh_after(self, queue: MessageQueue, patience_s: float) -> None:
        await asyncio.sleep(patience_s)
        with contextlib.suppress(NetError, MQError):  # the old route is tried again
            await self._session.refresh(queue.topic)

    async def _pull(self, held: Assigned) -> None:
        queue, buffer = held.queue, held.buffer
        subscription = self._subscriptions[queue.topic].data
        route = self._session.known_route(queue.topic)
        broker = route.broker_of(queue) if route is not None else ""
        address = route.replica(broker, held.replica_id) if route is not None else None
        if route is None or address is None:
            raise ConnectFailed(str(queue), "has no live replica")
        master = route.master(broker)
        if held.provisional and master is not None:
            await self._start_offsets.confirm(held)
        flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
        commit_offset = 0
        # Java's brokers take the offset in a pull of a logical queue for one of the physical queue.
        commits = self._model is MessageModel.CLUSTERING and not route.is_static
        # Nor at a slave, as Java's clients: it gets its master's offsets.
        commits = commits and address == master and not held.provisional
        if commits and buffer.commit_offset > held.floor:
            flags |= PullSysFlag.COMMIT_OFFSET
            commit_offset = buffer.commit_offset
        header = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=buffer.next_offset,
            max_msg_nums=self._limits.batch_size,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
            broker_name=broker,
        )
        held.last_pull_ms = self._session.clock.now_ms()
        answer = await self._session.net.invoke(
            address,
            Command(int(PullMessage.code), header.to_ext(), binary=True),
            timeout_ms=PULL_TIMEOUT_MS,
        )
        if answer.code != _FOUND and answer.code not in _NOTHING and answer.code != _MOVED:
            raise error_for(answer.code, answer.remark, answer.ext)
        self._outages.worked(broker, asyncio.get_running_loop().time())
        if held.dropped:
            return
        found = PullMessageResponse.from_ext(answer.ext)
        if answer.code == _MOVED and not self._believe(held, found):
            await self._refresh_after(queue, patience_s=10 * OUTAGE_POLL_S)
            return
        held.replica_id = found.suggest_which_broker_id
        held.moved_back_since = None
        if answer.code == _MOVED:
            log.warning(
                "%s: offset %d does not exist, continuing at %d",
                queue,
                buffer.next_offset,
                found.next_begin_offset,
            )
            if found.next_begin_offset < buffer.next_offset:
                # Messages that are handled now may have the offsets of those that are pulled next. What lies
                # before and is not done comes again.
                self._reset({queue: min(buffer.commit_offset, found.next_begin_offset)})
                return
        if answer.code == _FOUND:
            body = answer.body
            if found.offset_delta is not None:
                body = in_logical_queue(body, queue.queue_id, found.offset_delta)
            self._received(held, self._records(held, body, found.next_begin_offset), subscription)
        stays = buffer.next_offset == found.next_begin_offset
        buffer.next_offset = found.next_begin_offset
        if stays and master is None and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # A slave sends us to its master for what it does not have. It does not hold the pull, and while
            # there is no master it has nothing new.
            await asyncio.sleep(REFUSED_PAUSE_S)

    def _records(self, held: Assigned, body: Buffer, next_offset: int) -> list[MessageExt]:
        """The records of an answer, not inflated.

        Raises `MessageFormatError` when one cannot be decoded; after `UNREADABLE_ATTEMPTS` answers in a row
        it is left out instead, so that the queue continues.
        """
        try:
            records = decode_records(body, inflate=False)
        except MessageFormatError as error:
            held.unreadable += 1
            if held.unreadable < UNREADABLE_ATTEMPTS:
                held.replica_id = MASTER_ID
                raise
            log.error(
                "%s: records from offset %d up to %d cannot be decoded and are left out: %s",
                held.queue,
                held.buffer.next_offset,
                next_offset,
                error,
            )
            records = _decodable(body)
        held.unreadable = 0
        return records

    def _believe(self, held: Assigned, found: PullMessageResponse) -> bool:
        """Go where the broker sends us: forwards (messages expired) at once, backwards only after a while."""
        if found.next_begin_offset >= held.buffer.next_offset:
            return True
        now = asyncio.get_running_loop().time()
        if held.moved_back_since is None:
            held.moved_back_since = now
        held.replica_id = MASTER_ID
        return now - held.moved_back_since > MOVED_BACK_PATIENCE_S

    def _received(self, held: Assigned, messages: list[MessageExt], subscription: SubscriptionData) -> None:
        messages = [message for message in messages if matches(subscription, message.tags)]
        if not messages:
            return
        broken: dict[int, CompressionError] = {}
        for message in messages:
            message.properties[PROPERTY_MIN_OFFSET] = str(message.queue_offset)
            origin = message.properties.get(PROPERTY_RETRY_TOPIC)
            if origin and message.topic == self._retry_topic:
                message.topic = origin
            try:
                inflate(message)
            except CompressionError as error:
                broken[message.queue_offset] = error
                spawn(self._give_up(held, message, error), held.tasks)
        held.buffer.add(messages)  # bodies count as they are held, inflated
        if broken:
            messages = [message for message in messages if message.queue_offset not in broken]
        if messages:
            self._handling.take(held, messages)

    async def _give_up(self, held: Assigned, message: MessageExt, error: CompressionError) -> None:
        """A message whose body does not inflate becomes a dead letter at once: no handler can read it.

        RocketMQ's clients leave out such a message and all that came with it in one answer
        (`MessageDecoder.decodesBatch`).
        """
        broadcasting = self._model is MessageModel.BROADCASTING
        log.error(
            "message %s, offset %d of %s, %s: %s",
            message.message_id,
            message.queue_offset,
            held.queue,
            "is left out" if broadcasting else "goes to the dead-letter topic",
            error,
        )
        while not broadcasting:
            try:
                await self._send_back(held.queue, message, DEAD_LETTER)
                break
            except (NetError, MQError) as refused:
                log.warning("offset %d of %s: %s", message.queue_offset, held.queue, refused)
                await asyncio.sleep(GIVE_UP_RETRY_S)
        held.buffer.done([message])
        held.room.set()


def _decodable(body: Buffer) -> list[MessageExt]:
    """Those records of an answer that can be decoded."""
    records: list[MessageExt] = []
    for at in scan_frames(body)[:-1]:
        with contextlib.suppress(MessageFormatError):  # the caller has logged the first error
            records.append(decode_record(body, at, inflate=False))
    return records
