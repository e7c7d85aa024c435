"""Revivals of popped messages that a switch of the master cut in two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from batonmq.broker.pop.journal import ACK, BATCH_ACK
from batonmq.protocol.bodies.pop import AckRecord
from batonmq.protocol.message.record import MessageExt, decode_record, scan_frames
from batonmq.protocol.names import RETRY_PREFIX
from batonmq.store.store import MessageStore

_decode = msgspec.json.Decoder(AckRecord).decode


def cut_revivals(log: Iterable[MessageExt], epoch_starts: Iterable[int], revive_topic: str) -> Counter[str]:
    """How often a message was stored again by a revival that the log has without its end, by key.

    A master appends the retry messages and then the ack that settles their check point. If its log, as far as
    the next master has it, ends between them, that one revives the messages as well: both copies come. One
    master revives a message once before it settles the check point.
    `log`: all records, in order; `epoch_starts`: ascending offsets where another master begins.
    """
    names: dict[tuple[str, int, int], str] = {}
    under_way: set[str] = set()
    cut: Counter[str] = Counter()
    starts = list(epoch_starts)
    for record in log:
        while starts and starts[0] <= record.physical_offset:
            del starts[0]
            cut.update(under_way)
            under_way.clear()
        key = record.properties.get("KEYS")
        if key is not None:
            names[record.topic, record.queue_id, record.queue_offset] = key
            if record.topic.startswith(RETRY_PREFIX):
                under_way.add(key)
        elif record.topic == revive_topic and record.tags in (ACK, BATCH_ACK):
            ack = _decode(record.body)
            for offset in (ack.offsets or [ack.offset]) if ack.by_broker else ():
                revived = names.get((ack.topic, ack.queue_id, offset))
                under_way.discard(revived or "")
    return cut


def all_records(store: MessageStore) -> Iterator[MessageExt]:
    """What a log holds, in order."""
    at = store.min_offset
    while at < store.max_offset:
        data = store.read(at, store.max_offset - at)  # a file's rest, at most; it may end with a blank
        for begin in scan_frames(data)[:-1]:
            yield decode_record(data, begin)
        at += len(data)
