"""The half messages of one term of this master, and what it knows about them.

The state of a term ends with it. The next master reads it from the log and the offset table.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.transaction.check_counts import CheckCounts
from batonmq.broker.transaction.core import HalfWindow, State
from batonmq.broker.transaction.counts import TransactionCounts
from batonmq.broker.transaction.half import HALF_QUEUE, OP_TAG, first_copy, offsets_of
from batonmq.broker.transaction.op_writer import OpWriter
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import PROPERTY_TRANSACTION_MOVED
from batonmq.protocol.message.record import MessageExt, decode_record, decode_records, scan_frames
from batonmq.protocol.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from batonmq.store.errors import StoreError
from batonmq.store.results import GetStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from batonmq.broker.context import Broker
    from batonmq.broker.transaction.askers import Asker
    from batonmq.store.results import GetResult

log = logging.getLogger(__name__)

BATCH: Final = 32
"""Messages read at a time."""
BATCH_BYTES: Final = 1 << 20
_MOST_NOT_SAFE: Final = 10_000
"""Commits searched at a time for those that have become safe."""
_GONE: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_FOUND_NULL,
)


class Term:
    """`ready` is resolved when the decisions of earlier terms are known; `window` exists from then on."""

    def __init__(self, broker: Broker, counts: TransactionCounts, checks: CheckCounts) -> None:
        self._broker = broker
        self._store = broker.store
        self.counts = counts
        self.checks = checks
        self.ops = OpWriter(broker)
        self.window = HalfWindow(0, 0)
        self.commits: dict[int, list[Asker]] = {}
        """Half offset (of the first copy) -> the requests that commit it; the message is on its way to the
        log."""
        self._not_safe: dict[int, int] = {}
        """Half offset (of the first copy) of a committed message -> end of the committed message in the log,
        if disk or replicas may not have it yet."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = False
        self.acting = broker.role.is_acting
        """Whether this broker acts as master (RIP-32). It cannot write op messages. Its decisions are only in
        the stored offsets, so the next master may check those after the first undecided message again."""
        self.escaped: set[int] = set()
        """Half offsets (of the first copy) of messages that were handed over to another master."""

    def end(self) -> None:
        """This broker loses the role, or stops."""
        self.ended = True
        self.ops.stop()
        if not self.ready.done():
            self.ready.set_result(None)

    async def wait_ready(self) -> None:
        """Wait until `ready` is resolved, or the term has ended."""
        await asyncio.wait([self.ready])

    # -- decisions

    def decide(self, record: MessageExt, state: State) -> None:
        """A half message was committed or rolled back: do not check it or its copies again."""
        for offset in (record.queue_offset, first_copy(record)):
            if offset is None:
                continue
            if self.acting:
                self.window.set_safe(offset, state)
            else:
                self.window.set(offset, state)
                self.ops.add(offset)
        if self.acting:
            self.store_offsets()

    def move(self, offset: int) -> None:
        """A half message was stored again, given up or handed over."""
        if self.acting:
            self.window.set_safe(offset, State.MOVED)
            self.store_offsets()
            return
        self.window.set(offset, State.MOVED)
        self.ops.add(offset, moved=True)

    def publish_checks(self) -> None:
        """After a round: publish the numbers of checks for slaves."""
        if self.checks.publish(self.window.offset, self.window.all_checks()):
            self._broker.tables.watch.changed()

    def not_safe_yet(self, original: int, end_offset: int) -> None:
        """A committed message that ends at this offset is in the log, but was not safe in time."""
        if len(self._not_safe) >= _MOST_NOT_SAFE:
            acked = self._broker.appender.is_acked
            self._not_safe = {half: end for half, end in self._not_safe.items() if not acked(end)}
        self._not_safe[original] = end_offset

    def is_safe(self, original: int) -> bool:
        """Whether the commit of a committed half message is safe from a failover."""
        end_offset = self._not_safe.get(original)
        if end_offset is None:
            return True
        if not self._broker.appender.is_acked(end_offset):
            return False
        del self._not_safe[original]
        return True

    # -- reading

    def grow(self) -> None:
        """Add the half messages that have become visible."""
        self.window.grow(self._store.queue_bounds(TRANS_HALF_TOPIC, HALF_QUEUE).max_offset)

    def read_ops(self) -> bool:
        """Read the next op messages; False if there were none."""
        window = self.window
        found = self._store.get(TRANS_OP_HALF_TOPIC, HALF_QUEUE, window.next_op, BATCH, BATCH_BYTES)
        if found.status is not GetStatus.FOUND:
            if found.status in _GONE and found.next_offset > window.next_op:
                log.warning("op messages %d to %d are gone", window.next_op, found.next_offset - 1)
                window.skip_ops(found.next_offset)
                return True
            return False
        records = whole(found)
        if records is None:
            found = self._store.get(TRANS_OP_HALF_TOPIC, HALF_QUEUE, window.next_op, 1, BATCH_BYTES)
            records = list(records_in(found))
        for record in records:
            if record.tags != OP_TAG:
                log.error("op message %d has tag %r instead of %r", record.queue_offset, record.tags, OP_TAG)
                window.op_read(record.queue_offset, [])
                continue
            moved = PROPERTY_TRANSACTION_MOVED in record.properties
            window.op_read(record.queue_offset, offsets_of(record.body), moved=moved)
        window.next_op = max(window.next_op, found.next_offset)
        return True

    def store_offsets(self) -> None:
        """Advance, and store the offsets if one has moved."""
        window = self.window
        if self.ended or not window.advance():
            return
        offsets = self._broker.tables.offsets
        for topic, offset in ((TRANS_HALF_TOPIC, window.offset), (TRANS_OP_HALF_TOPIC, window.op_offset)):
            offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE, offset)

    def half_message(self, physical_offset: int) -> MessageExt | None:
        """The half message at a commit log offset, even an unconfirmed one; None if there is none."""
        store = self._store
        try:
            # No record is longer than a file; `maxMessageSize` may have been greater than now.
            view = store.read(physical_offset, store.config.mapped_file_size_commit_log)
            record = decode_record(view, check_crc=True, inflate=False)
        except (StoreError, MessageFormatError):
            return None
        if record.physical_offset != physical_offset or record.topic != TRANS_HALF_TOPIC:
            return None
        if not store.has_record(TRANS_HALF_TOPIC, record.queue_id, record.queue_offset, physical_offset):
            return None  # a part of a body
        return record


def whole(found: GetResult) -> list[MessageExt] | None:
    """The records of a result, bodies not inflated. None if one of several is damaged: then it is read one by
    one, because where the next one begins may be unknown."""
    try:
        records = [record for view in found.buffers for record in decode_records(view, inflate=False)]
    except MessageFormatError:
        return None if found.count > 1 else list(records_in(found))
    return records if len(records) == found.count else None


def records_in(found: GetResult) -> Iterator[MessageExt]:
    """The decodable records of a result, bodies not inflated; damaged ones are logged."""
    for view in found.buffers:
        for at in scan_frames(view)[:-1]:
            try:
                yield decode_record(view, at, inflate=False)
            except MessageFormatError as error:
                log.error("a record of a transaction topic is left out: %s", error)
