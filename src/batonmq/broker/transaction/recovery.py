"""Reads the decisions of earlier terms on a new master: op messages, and commits without op message.

An op message is written up to `transactionOpBatchInterval` after its commits. When a RocketMQ master is lost,
its collected decisions are lost too; the next master checks these messages and delivers them again. Here the
new master first searches the last part of the log for committed messages, which name their half messages.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.messages.internal import put
from batonmq.broker.transaction.batch import DeliveredRows, is_batch
from batonmq.broker.transaction.core import HalfWindow, State
from batonmq.broker.transaction.half import HALF_QUEUE, first_copy, real_place, to_committed
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import POSITIONS
from batonmq.protocol.message.properties import PROPERTY_UNIQUE_KEY
from batonmq.protocol.message.record import MessageExt, decode_record, scan_frames
from batonmq.protocol.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from batonmq.store.errors import StoreError
from batonmq.store.results import GetStatus
from batonmq.store.scan import blank_size

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.transaction.term import Term

log = logging.getLogger(__name__)

VISIBLE_POLL_S: Final = 0.02
MOST_BYTES: Final = 1 << 30
"""Part of the log that is searched, and up to one file more. Commits without op message before it are checked
again."""
_CHUNK: Final = 4 << 20
_AGAIN_S: Final = 0.5
"""Pause before the rest of a batch is appended again."""
_MORE_MS: Final = 1_000
_SYS_FLAG: Final = struct.Struct(">i")
_SYS_FLAG_AT: Final = POSITIONS["sys_flag"]
_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT


class Recovery:
    """The recovery of one term."""

    def __init__(self, broker: Broker, term: Term) -> None:
        self._broker = broker
        self._store = broker.store
        self._term = term
        self._log_end = broker.store.max_offset
        """Where the log of earlier terms ends."""
        self._half: tuple[int, MessageExt | None] = (-1, None)
        """Commit log offset of the last half message that was read, and the message."""
        self._batches: dict[int, DeliveredRows] = {}
        """Half offset of an undecided batch -> its messages in the log."""

    async def run(self) -> None:
        """Read the decisions of earlier terms; `Term.ready` is resolved at the end."""
        term = self._term
        # Until the whole log of the earlier terms is confirmed, some of its op messages cannot be read.
        while self._store.dispatched_offset < self._log_end and not term.ended:  # noqa: ASYNC110
            await asyncio.sleep(VISIBLE_POLL_S)
        if term.ended:
            return
        term.window = HalfWindow(
            self._stored_offset(TRANS_HALF_TOPIC), self._stored_offset(TRANS_OP_HALF_TOPIC)
        )
        term.grow()
        while term.read_ops():  # noqa: ASYNC110 -- lets other work run
            await asyncio.sleep(0)
        found = await self._find_commits()
        for rows in list(self._batches.values()):
            await self._deliver_rest(rows)
        if term.ended:
            return
        window = term.window
        window.learn_checks(term.checks.offset, term.checks.counts)
        if window.size:
            log.info(
                "transactions: half messages from %d to %d may be open; %d commits had no op message",
                window.offset,
                window.end,
                found,
            )
        term.ready.set_result(None)

    def _stored_offset(self, topic: str) -> int:
        offset = self._broker.tables.offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE)
        bounds = self._store.queue_bounds(topic, HALF_QUEUE)
        return min(max(offset, bounds.min_offset), bounds.max_offset)

    # -- commits without op message

    async def _find_commits(self) -> int:
        """Search the log for commits of undecided half messages; returns their number."""
        undecided = self._term.window.next_undecided(self._term.window.offset, 1)
        if undecided is None:
            return 0
        at = self._position(TRANS_HALF_TOPIC, undecided[0])
        if at is None:
            return 0
        at = max(at, self._collected_since())
        file_size = self._store.config.mapped_file_size_commit_log
        if self._log_end - at > MOST_BYTES:
            # Commits are collected for seconds only, so the newest part matters. A file begins with a record.
            tail = self._log_end - MOST_BYTES
            tail = max(at, tail - tail % file_size)
            if tail > at:
                log.warning(
                    "the log from %d on is too long to look for commits, the search begins at %d: messages "
                    "that were committed before may be delivered again",
                    *(at, tail),
                )
            at = tail
        found = 0
        size = _CHUNK
        loop = asyncio.get_running_loop()
        while at < self._log_end and not self._term.ended:
            try:
                chunk = await loop.run_in_executor(self._broker.readers, self._store.reading(at, size))
            except (OSError, StoreError) as error:
                log.warning("the log cannot be read from %d on to look for commits: %s", at, error)
                return found
            starts = scan_frames(chunk)
            if starts[-1] == 0:
                longer = int.from_bytes(chunk[:4], "big")
                if size < longer <= file_size and not blank_size(chunk, 0, len(chunk)):
                    size = longer  # one record
                else:  # the filler at the end of a file
                    at += file_size - at % file_size
                    size = _CHUNK
                continue
            found += sum(self._commits(chunk, start) for start in starts[:-1])
            at += starts[-1]
        return found

    def _position(self, topic: str, queue_offset: int) -> int | None:
        """Commit log offset of a message of queue 0."""
        found = self._store.get(topic, HALF_QUEUE, queue_offset, 1)
        if found.status is not GetStatus.FOUND:
            return None
        # Not the whole record: it may be damaged elsewhere.
        at = POSITIONS["physical_offset"]
        return int.from_bytes(found.buffers[0][at : at + 8], "big")

    def _collected_since(self) -> int:
        """Commit log offset before which all commits are in op messages."""
        bounds = self._store.queue_bounds(TRANS_OP_HALF_TOPIC, HALF_QUEUE)
        written_ms = self._store.queue_store_time(TRANS_OP_HALF_TOPIC, HALF_QUEUE, bounds.max_offset - 1)
        if written_ms < 0:
            return 0
        broker, store = self._broker.settings.broker, self._broker.settings.store
        longest_ms = (
            broker.transaction_op_batch_interval + broker.slave_timeout + store.sync_flush_timeout + _MORE_MS
        )
        offset = self._store.offset_by_time(TRANS_OP_HALF_TOPIC, HALF_QUEUE, written_ms - longest_ms)
        if offset <= bounds.min_offset:
            return 0
        return self._position(TRANS_OP_HALF_TOPIC, offset - 1) or 0

    def _commits(self, chunk: bytes, start: int) -> bool:
        """Whether this record commits an undecided half message; marks that as decided."""
        if _SYS_FLAG.unpack_from(chunk, start + _SYS_FLAG_AT)[0] & _MASK != _COMMIT:
            return False
        try:
            record = decode_record(chunk, start, inflate=False)
        except MessageFormatError:
            return False
        half = self._half_message(record.prepared_transaction_offset)
        if half is None or not self._term.window.is_undecided(half.queue_offset):
            return False
        # A message that a group sent back has no prepared offset; its 0 may be the offset of a half message.
        unique_key = record.properties.get(PROPERTY_UNIQUE_KEY)
        if not unique_key:
            return False
        if is_batch(half.properties):
            return self._row(half, unique_key)
        if unique_key != half.properties.get(PROPERTY_UNIQUE_KEY):
            return False
        self._term.decide(half, State.COMMITTED)
        return True

    def _half_message(self, physical_offset: int) -> MessageExt | None:
        """As `Term.half_message`, with the last result kept: the messages of a batch name the same half
        message."""
        if self._half[0] != physical_offset:
            self._half = physical_offset, self._term.half_message(physical_offset)
        return self._half[1]

    # -- batches

    def _row(self, half: MessageExt, unique_key: str) -> bool:
        """Whether this message is the last one of a committed batch; marks the batch as decided then."""
        rows = self._batches.get(half.queue_offset)
        if rows is None:
            try:
                rows = self._batches[half.queue_offset] = DeliveredRows(half)
            except MessageFormatError:
                return False
        rows.read(unique_key)
        if not rows.whole:
            return False
        del self._batches[half.queue_offset]
        self._term.decide(half, State.COMMITTED)
        return True

    async def _deliver_rest(self, rows: DeliveredRows) -> None:
        """Deliver the missing messages of a batch that an earlier master has committed, if only the first
        ones reached this replica."""
        place = real_place(rows.half)
        if place is None or not rows.count:
            return
        try:
            message, _ = to_committed(rows.half, place, rows.count)
        except MessageFormatError as error:
            log.error("half message %d: the rest of its batch is damaged: %s", rows.half.queue_offset, error)
            return
        while not self._term.ended:
            outcome = await put(self._broker.appender, message)
            if outcome.result is not None:
                self._term.decide(rows.half, State.COMMITTED)
                first = first_copy(rows.half)
                if not outcome.ok:
                    original = rows.half.queue_offset if first is None else first
                    self._term.not_safe_yet(original, outcome.result.end_offset)
                log.info("half message %d: the rest of its batch is delivered", rows.half.queue_offset)
                return
            if outcome.status is PutStatus.MESSAGE_ILLEGAL:
                log.error(
                    "half message %d: the rest of its batch cannot be delivered", rows.half.queue_offset
                )
                return
            await asyncio.sleep(_AGAIN_S)
