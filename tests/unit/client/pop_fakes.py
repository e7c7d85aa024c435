"""A broker in memory that serves pop consumers: it hides messages for a time, then shows them again."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.pop import BatchAckMessageRequestBody, differences_of
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PopMessage,
    PopMessageResponse,
)
from batonmq.protocol.json import decode
from batonmq.protocol.message.properties import PROPERTY_POP_CK, decode_properties, encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, encode_record
from batonmq.protocol.pop import NORMAL, ORDER_REVIVE_QUEUE, RETRY_V1, Receipt, parse_receipt

from .fakes import FakeBroker

LONGEST_POLL_S = 0.3


@dataclass
class State:
    """Of one message and one group."""

    hidden_until: float = 0.0
    pop_time: int = 0
    attempts: int = 0
    acked: bool = False


class PopBroker(FakeBroker):
    """`popped` counts pops that brought something, `acks` all acknowledged (topic, queue, offset)."""

    def more(self) -> dict[int, Callable[[Request], object]]:
        self.states: dict[tuple[str, str, int, int], State] = defaultdict(State)
        self.pops: list[PopMessage] = []
        self.popped = 0
        self.notifications = 0
        self.acks: list[tuple[str, int, int]] = []
        self.single_acks = self.batch_acks = 0
        self.changes: list[ChangeInvisibleTime] = []
        self.rewrite: Callable[[PopMessageResponse], PopMessageResponse] = lambda header: header
        self.pop_time = 0
        self.answer_delay_s = 0.0
        return {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.NOTIFICATION: self._notification,
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.BATCH_ACK_MESSAGE: self._batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
        }

    def _visible(self, group: str, topic: str, order: bool) -> list[tuple[int, int]]:
        now = time.monotonic()
        found = []
        for queue, records in self.log.records.items():
            if queue.topic != topic or queue.broker_name != self.name:
                continue
            states = [self.states[group, topic, queue.queue_id, n] for n in range(len(records))]
            if order and any(state.hidden_until > now and not state.acked for state in states):
                continue
            found += [
                (queue.queue_id, n)
                for n, state in enumerate(states)
                if not state.acked and state.hidden_until <= now
            ]
        return found

    async def _until(self, poll_ms: int, group: str, topic: str, order: bool) -> list[tuple[int, int]]:
        end = time.monotonic() + min(poll_ms / 1000, LONGEST_POLL_S)
        while not (found := self._visible(group, topic, order)) and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return found

    async def _pop(self, request: Request) -> Reply:
        header = PopMessage.from_ext(request.command.ext)
        self.pops.append(header)
        group, topic = header.consumer_group, header.topic
        found = (await self._until(header.poll_time, group, topic, header.order))[: header.max_msg_nums]
        if not found:
            raise MQError(ResponseCode.POLLING_TIMEOUT, "nothing")
        self.popped += 1
        self.pop_time = max(self.pop_time + 1, int(time.time() * 1000))
        until = time.monotonic() + header.invisible_time / 1000
        revive = ORDER_REVIVE_QUEUE if header.order else 3
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        counts = []
        records = []
        for queue_id, offset in found:
            state = self.states[group, topic, queue_id, offset]
            state.hidden_until, state.pop_time = until, self.pop_time
            state.attempts += 1
            retry = NORMAL if header.order or state.attempts == 1 else RETRY_V1
            offsets[retry, queue_id].append(offset)
            record = self.log.records[MessageQueue(topic, self.name, queue_id)][offset]
            if retry != NORMAL:
                receipt = Receipt(
                    offset, self.pop_time, header.invisible_time, revive, retry, self.name, queue_id, offset
                )
                record = _retried(record, receipt, state.attempts - 1)
            elif state.attempts > 1:
                counts.append(f"0 qo{queue_id}%{offset} {state.attempts - 1}")
            records.append(record)
        answer = PopMessageResponse(
            pop_time=self.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=revive,
            rest_num=0,
            start_offset_info=";".join(
                f"{retry} {queue} {each[0]}" for (retry, queue), each in offsets.items()
            ),
            msg_offset_info=";".join(
                f"{retry} {queue} {','.join(map(str, each))}" for (retry, queue), each in offsets.items()
            ),
            order_count_info=";".join(counts) or None,
        )
        await asyncio.sleep(self.answer_delay_s)
        return Reply(self.rewrite(answer), records)

    async def _notification(self, request: Request) -> Reply:
        header = Notification.from_ext(request.command.ext)
        self.notifications += 1
        found = await self._until(header.poll_time, header.consumer_group, header.topic, header.order)
        return Reply(NotificationResponse(bool(found)))

    def _ack(self, request: Request) -> Reply:
        header = AckMessage.from_ext(request.command.ext)
        self.single_acks += 1
        receipt = parse_receipt(header.extra_info)
        topic = _asked(header.topic, receipt, header.consumer_group)
        self._acked(header.consumer_group, topic, receipt.queue_id, header.offset, receipt.pop_time)
        return Reply()

    def _batch_ack(self, request: Request) -> Reply:
        body = decode(request.command.body, BatchAckMessageRequestBody)
        assert body.broker_name == self.name
        self.batch_acks += 1
        for ack in body.acks:
            for difference in differences_of(ack.bit_set):
                offset = ack.start_offset + difference
                self._acked(ack.consumer_group, ack.topic, ack.queue_id, offset, ack.pop_time)
        return Reply()

    def _acked(self, group: str, topic: str, queue_id: int, offset: int, pop_time: int) -> None:
        state = self.states[group, topic, queue_id, offset]
        assert state.pop_time == pop_time, "an ack with an old receipt"
        state.acked = True
        self.acks.append((topic, queue_id, offset))

    def _change(self, request: Request) -> Reply:
        header = ChangeInvisibleTime.from_ext(request.command.ext)
        self.changes.append(header)
        receipt = parse_receipt(header.extra_info)
        topic = _asked(header.topic, receipt, header.consumer_group)
        state = self.states[header.consumer_group, topic, receipt.queue_id, header.offset]
        assert state.pop_time == receipt.pop_time, "a change with an old receipt"
        self.pop_time = max(self.pop_time + 1, int(time.time() * 1000))
        state.pop_time = receipt.pop_time if receipt.ordered else self.pop_time
        state.hidden_until = time.monotonic() + header.invisible_time / 1000
        return Reply(ChangeInvisibleTimeResponse(state.pop_time, header.invisible_time, receipt.revive_queue))


def _asked(stored_topic: str, receipt: Receipt, group: str) -> str:
    """The topic that was popped, from the one that the request has to name."""
    if receipt.retry == NORMAL:
        return stored_topic
    prefix = f"%RETRY%{group}_"
    assert stored_topic.startswith(prefix)
    return stored_topic[len(prefix) :]


def _retried(record: bytes, receipt: Receipt, reconsume_times: int) -> bytes:
    """A record of the retry topic, as brokers answer it: with the topic that was popped, and its receipt."""
    message = decode_record(record)
    raw = encode_properties({**message.properties, PROPERTY_POP_CK: str(receipt)})
    assert decode_properties(raw)[PROPERTY_POP_CK] == str(receipt)
    return encode_record(
        StoredMessage(
            topic=message.topic,
            queue_id=message.queue_id,
            body=message.body,
            properties=raw,
            reconsume_times=reconsume_times,
        ),
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        store_timestamp=message.store_timestamp,
    )
