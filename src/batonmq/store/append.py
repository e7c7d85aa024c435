"""The messages of one turn as records of the log and units of consume queues. No I/O of its own."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.batch import scan_batch
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import BLANK_SIZE
from batonmq.protocol.message.light import LIGHT_MARK
from batonmq.protocol.message.properties import MAX_PROPERTIES_BYTES
from batonmq.protocol.message.record import StoredMessage, encode_blank, encode_preamble, topic_field
from batonmq.store.append_many import Records, encode_many
from batonmq.store.consumequeue import UNIT, ConsumeQueue, no_queue_reason
from batonmq.store.dispatch import PendingUnits
from batonmq.store.light import Item, LightQueues, Plan
from batonmq.store.queues import ConsumeQueues
from batonmq.store.results import PutResult, PutStatus
from batonmq.store.scan import NO_UNIT, tags_code

log = logging.getLogger(__name__)

_TRANSACTION_MASK = MessageSysFlag.TRANSACTION_MASK

_SHORT = struct.Struct(">h")
WRITE_BYTES: Final = 512 << 10
"""So much of a turn is written at once. More together would take more memory than a program keeps
(`common.garbage`), and finding new pages for it takes as long as the rest."""
Segment: TypeAlias = "tuple[int, list[Buffer]]"
"""Pieces to write in one run, and the commit log offset where they begin. No run is in two files."""


class Turn(NamedTuple):
    """What is to be appended. Its queues have given out the queue offsets already."""

    results: list[PutResult]
    """One for each message; also those of the messages refused."""
    segments: list[Segment]
    """What is still to be written."""
    units: list[PendingUnits]
    """Of all records; those of a record are one more for each light queue that it enters."""
    before: dict[ConsumeQueue, int]
    """What each queue's `next_offset` was."""
    end: int
    """Commit log offset after the last record."""

    def fail(self) -> list[PutResult]:
        """Nothing could be written: give the queue offsets back. Returns one result a message."""
        _give_back(self.before)
        failed = PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
        return [failed if result.status is PutStatus.PUT_OK else result for result in self.results]


def _give_back(before: dict[ConsumeQueue, int]) -> None:
    for queue, offset in before.items():
        queue.next_offset = offset


def encode_turn(
    batch: Sequence[StoredMessage],
    queues: ConsumeQueues,
    position: int,
    now: int,
    file_size: int,
    max_body: int,
    light: LightQueues | None = None,
    write: Callable[[list[Segment]], None] | None = None,
) -> Turn:
    """Records from commit log offset `position` on, stored at `now` ms, in files of `file_size` bytes.

    `max_body`: bytes that the body of a message, or of a whole batch, may have at most. Queue offsets that an
    exception would leave without a message are given back: consumers would find a hole there. `light`: the
    store's light queues; None if it has none. `write` gets the records whenever there are `WRITE_BYTES` of
    them, and up to the end of each large batch at once.
    """
    before: dict[ConsumeQueue, int] = {}
    try:
        return _encode(batch, queues, position, now, file_size, max_body, before, light, write)
    except BaseException:
        _give_back(before)
        raise


def _encode(
    batch: Sequence[StoredMessage],
    queues: ConsumeQueues,
    position: int,
    now: int,
    file_size: int,
    max_body: int,
    before: dict[ConsumeQueue, int],
    light: LightQueues | None,
    write: Callable[[list[Segment]], None] | None,
) -> Turn:
    segment = position
    file_end = position - position % file_size + file_size
    parts: list[Buffer] = []
    segments: list[Segment] = []
    units: list[PendingUnits] = []
    results: list[PutResult] = []
    by_key = queues.by_key
    ok = PutStatus.PUT_OK
    pack_unit = UNIT.pack
    for message in batch:
        body, properties = message.body, message.properties
        if len(body) > max_body and not message.accepted:
            results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
            continue
        if message.batch:
            known = by_key.get((message.topic, message.queue_id))
            room = file_end - position - BLANK_SIZE
            many = None if known is None else _many(message, known, light, position, room, now)
            if known is not None and many is not None:
                if known not in before:
                    before[known] = known.next_offset
                place, size = (position, known.next_offset), many.end - position
                results.append(PutResult(ok, *place, size, now, many.offsets))
                known.next_offset += len(many.offsets)
                # By itself: joined with others so much would be copied once more.
                if parts:
                    segments.append((segment, parts))
                    parts = []
                segments.append((position, [many.data]))
                if write is not None:
                    write(segments)
                    segments = []
                units.append(many.units)
                segment = position = many.end
                continue
        try:
            magic, topic = topic_field(message.topic)
            items: Sequence[Item] = _batch_items(message) if message.batch else _single_item(message)
        except MessageFormatError as error:
            log.debug("message for %s refused: %s", message.topic, error)
            results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
            continue
        if not items:
            results.append(PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED))
            continue
        plan: Plan | None = None
        if light is not None and _names_light_queues(message, items):
            planned = light.plan(message.topic, items, accepted=message.accepted)
            if isinstance(planned, PutStatus):
                results.append(PutResult(planned))
                continue
            if planned is not None:
                plan = planned
                items = plan.items
        fixed = 72 + len(message.born_host) + len(message.store_host) + len(topic)
        # Properties with offsets in light queues are longer than the message's own.
        large = plan is not None or fixed + len(body) + len(properties) + 2 + BLANK_SIZE > file_size
        if large and not _all_fit(items, file_size - fixed - BLANK_SIZE):
            results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
            continue
        queue = by_key.get((message.topic, message.queue_id))
        if queue is None:
            reason = no_queue_reason(message.topic, message.queue_id)
            if reason is not None:
                log.warning("message for topic %.300r refused: it %s", message.topic, reason)
                results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
                continue
            queue = queues.ensure(message.topic, message.queue_id)
        if queue not in before:
            before[queue] = queue.next_offset
        with_unit = message.sys_flag & _TRANSACTION_MASK not in NO_UNIT
        if plan is not None:
            for light_queue, light_end in plan.ends.items():
                if light_queue not in before:
                    before[light_queue] = light_queue.next_offset
                light_queue.next_offset = light_end
        queue_offset = first_queue_offset = queue.next_offset if with_unit else 0
        unit_code = queue.unit_code
        offsets: list[int] = []
        for flag, item_body, item_properties, tail in items:
            size = fixed + len(item_body) + len(tail)
            if position + size + BLANK_SIZE > file_end:
                parts.append(encode_blank(file_end - position))
                segments.append((segment, parts))
                parts = []
                segment = position = file_end
                file_end += file_size
            parts += (
                encode_preamble(
                    message,
                    magic,
                    item_body,
                    len(topic) + len(tail),
                    flag,
                    queue_offset,
                    position,
                    now,
                ),
                item_body,
                topic,
                tail,
            )
            offsets.append(position)
            end = position + size
            if with_unit:
                code = tags_code(item_properties) if unit_code is None else unit_code(item_properties, now)
                unit = pack_unit(position, size, code)
                units.append((end, queue, queue_offset, unit))
                queue_offset += 1
                if plan is not None:
                    for light_queue, light_offset in plan.places[len(offsets) - 1]:
                        units.append((end, light_queue, light_offset, unit))
            else:
                units.append((end, None, 0, b""))
            position = end
        if with_unit:
            queue.next_offset = queue_offset
        first = offsets[0]
        results.append(
            PutResult(
                ok,
                first,
                first_queue_offset,
                position - first,
                now,
                tuple(offsets) if message.batch else (),
            )
        )
        if position - segment >= WRITE_BYTES and write is not None:
            segments.append((segment, parts))
            write(segments)
            parts, segments, segment = [], [], position
    if parts:
        segments.append((segment, parts))
    return Turn(results, segments, units, before, position)


def _many(
    message: StoredMessage, queue: ConsumeQueue, light: LightQueues | None, position: int, room: int, now: int
) -> Records | None:
    """The records of a wire batch that `encode_many` takes; None for any other."""
    if message.sys_flag & _TRANSACTION_MASK in NO_UNIT:
        return None
    data = bytes(message.body)
    if light is not None and LIGHT_MARK in data:
        return None
    return encode_many(message, data, queue, position, room, now)


def _names_light_queues(message: StoredMessage, items: Sequence[Item]) -> bool:
    """Whether messages that enter consume queues may name light queues."""
    if message.sys_flag & _TRANSACTION_MASK in NO_UNIT:
        return False
    return any(LIGHT_MARK in properties for _, _, properties, _ in items)


def _single_item(message: StoredMessage) -> tuple[Item, ...]:
    properties = message.properties
    if len(properties) > MAX_PROPERTIES_BYTES:
        return ()
    return ((message.flag, message.body, properties, _SHORT.pack(len(properties)) + properties),)


def _all_fit(items: Sequence[Item], room: int) -> bool:
    return all(len(body) + len(tail) <= room for _, body, _, tail in items)


def _batch_items(message: StoredMessage) -> Sequence[Item]:
    """The messages of a wire batch."""
    data = bytes(message.body)
    return [
        (
            flag,
            data[body:tail],
            data[tail + 2 : end],
            data[tail:end] if data[end - 1] else _ended(data[tail:end]),
        )
        for flag, body, tail, end in scan_batch(data)
    ]


def _ended(tail: bytes) -> bytes:
    """Properties behind their length, as what does not end with a zero: a record that does and is the log's
    last looks after a crash as if its end had been lost (`check_record`), and is cut off. RocketMQ's clients
    end them with the separator that is added here, and so do single sends."""
    properties = tail[2:]
    if not properties or len(properties) >= MAX_PROPERTIES_BYTES:
        return tail[:-1] + b"\2" if properties else tail
    return _SHORT.pack(len(properties) + 1) + properties + b"\2"
