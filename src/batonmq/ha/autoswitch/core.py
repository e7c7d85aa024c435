"""The two ends of a replication link, without I/O: `MasterSession` and `SlaveSession`.

A session lives as long as one connection. Bytes and the time go in; frames to send, and for the slave the
changes to make to its log, come out. Sessions never read a clock, a socket or a store: what they must know of
the log is passed in as `LogBounds`. The shells (`master_link.py`, `slave_link.py`) apply the results in
order.

    slave                                   master
      handshake  ------------------------->
                 <-------------------------  handshake (all epochs, end of log)
      truncate to the last common point
      ack(end of log)  ------------------->  transfer starts there
                 <-------------------------  transfer, transfer, … (each within one epoch)
      append, ack  ----------------------->

Source: `docs/en/controller/design.md` of Apache RocketMQ, "Log replication".
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from batonmq.ha.autoswitch.epochs import EpochCache, consistent_point
from batonmq.ha.silence import LinkSilence
from batonmq.protocol.ha_frames import (
    Ack,
    Body,
    EpochStart,
    HAFrameError,
    MasterFrameReader,
    MasterHandshake,
    SlaveFrameReader,
    SlaveHandshake,
    Transfer,
)
from batonmq.protocol.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_MAGIC
from batonmq.protocol.message.record import first_record_size, next_record, scan_frames


class LogBounds(NamedTuple):
    """What a session needs to know of the local log. Offsets are physical, in bytes."""

    min_offset: int
    max_offset: int
    """Exclusive end."""
    confirm_offset: int = 0
    file_size: int = 1 << 30
    """Size of one commit log file."""


class Batch(NamedTuple):
    """A stretch of log to send next: at most `max_bytes` from `offset`, all of one epoch."""

    offset: int
    max_bytes: int
    epoch: int
    epoch_start: int


def whole_records(log: memoryview, limit: int, offset: int, *, ends: bool) -> int:
    """How much of `log` goes into one frame to a member of the SyncStateSet: about `limit` bytes, but no part
    of a record.

    A RocketMQ slave takes whole frames only. If it has the first half of a record when its master dies, and
    is elected, it waits for the other half for ever and serves no client, while its heartbeats go on. With
    half a filler it appends messages within the filler, where no consumer finds them. A single record or
    filler may be longer than `limit`.

    `log` begins at the physical `offset`; `ends`: a record or the log ends where it ends. If it begins amid a
    record, because the slave got the beginning before it was a member, the result is the rest of that record.
    Only of what does not fit into `log` the result is a piece of `limit` bytes.
    """
    if ends and len(log) <= limit:
        return len(log)
    end = scan_frames(log[:limit])[-1] or first_record_size(log)
    if end:
        return end
    rest = next_record(log, offset)
    if rest is None and ends:
        rest = len(log)
    size, magic = SIZE_MAGIC.unpack_from(log) if len(log) >= SIZE_MAGIC.size else (0, None)
    if magic == MAGIC_BLANK and limit < size <= len(log):
        return int(size)
    if rest is None or magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return min(limit, len(log))
    return rest


class _Phase(Enum):
    HANDSHAKE = auto()
    """Waiting for the slave to introduce itself."""
    COMPARE = auto()
    """The slave has our epochs and looks for the common point; its first ack ends this."""
    TRANSFER = auto()


class MasterSession:
    """One slave's connection as its master sees it."""

    def __init__(
        self, epochs: EpochCache, *, local_id: int = -1, heartbeat_ms: int, timeout_ms: int, now_ms: int
    ) -> None:
        """`epochs` is the live cache of this master's log, `local_id` its broker id; `heartbeat_ms`,
        `timeout_ms`: see `HAConfig`."""
        self._epochs = epochs
        self._local_id = local_id
        self._heartbeat_ms = heartbeat_ms
        self._timeout_ms = timeout_ms
        self._reader = SlaveFrameReader()
        self._phase = _Phase.HANDSHAKE
        self.silence = LinkSilence(now_ms)
        self._last_write_ms = now_ms
        self._sent_confirm = -2
        self._sent_epoch = -1
        self._mark: tuple[int, int] | None = None

        self.slave_id: int | None = None
        """The slave's broker id, None before its handshake."""
        self.async_learner = False
        self.sync_from_last_file = False
        self.ack_offset = -1
        """The slave has the log up to here; -1 before its first ack."""
        self.next_offset = -1
        """Next byte to send; -1 before transfer."""
        self._transfer_from = -1
        """Beyond the slave's end, if that is before our first byte, or it wants the last file only."""
        self.last_caught_up_ms: int | None = None
        """Newest time of which it is known that the slave has everything the master had then."""

    @property
    def transferring(self) -> bool:
        return self._phase is _Phase.TRANSFER

    @property
    def acked_of_sent(self) -> int:
        """All that was sent up to here is acknowledged; where sending began, before the first ack of it."""
        return max(self.ack_offset, self._transfer_from)

    def receive(self, data: bytes, log: LogBounds, now_ms: int) -> bytes:
        """Take the slave's bytes; returns what to answer, often nothing. `HAFrameError`: drop the link."""
        answer = b""
        acked, transferring = self.ack_offset, self.transferring
        for frame in self._reader.feed(data):
            if isinstance(frame, SlaveHandshake):
                answer += self._on_handshake(frame, log, now_ms)
            else:
                self._on_ack(frame.max_offset, log, now_ms)
        if transferring:
            self.silence.received(now_ms, heartbeat=self.ack_offset == acked)
        else:
            self.silence.excuse(now_ms)
        return answer

    def _on_handshake(self, frame: SlaveHandshake, log: LogBounds, now_ms: int) -> bytes:
        if self._phase is _Phase.COMPARE and frame.broker_id == self.slave_id:
            # RocketMQ's slave repeats its handshake when the answer is slow; two answers would confuse it.
            return b""
        if self._phase is not _Phase.HANDSHAKE:
            raise HAFrameError("handshake in the middle of a link")
        if frame.broker_id == self._local_id >= 0:
            # Its acks would count as a second copy of what only this master has (#3015).
            raise HAFrameError(f"it claims to be this master, id {frame.broker_id}")
        self._phase = _Phase.COMPARE
        self.slave_id = frame.broker_id
        self.async_learner = frame.async_learner
        self.sync_from_last_file = frame.sync_from_last_file
        self._last_write_ms = now_ms
        return MasterHandshake(log.max_offset, self._epochs.last_epoch, self._epochs.entries).encode()

    def _on_ack(self, offset: int, log: LogBounds, now_ms: int) -> None:
        if self._phase is _Phase.HANDSHAKE:
            raise HAFrameError("ack before the handshake")
        if self._phase is _Phase.COMPARE:
            if offset > log.max_offset:
                raise HAFrameError(f"slave claims {offset} bytes, the log has {log.max_offset}")
            self.next_offset = self._transfer_from = self._start_of_transfer(offset, log)
            self._phase = _Phase.TRANSFER
        elif not self.ack_offset <= offset <= self.next_offset:
            # apache/rocketmq #3015: an ack of what was never sent must not release anything.
            raise HAFrameError(f"ack of {offset} after {self.ack_offset}, sent up to {self.next_offset}")
        self.ack_offset = offset
        if self._mark is not None and offset >= self._mark[0]:
            self.last_caught_up_ms = self._mark[1]
            self._mark = None
        if offset >= log.max_offset:
            self.last_caught_up_ms = now_ms

    def _start_of_transfer(self, offset: int, log: LogBounds) -> int:
        if offset == 0 and self.sync_from_last_file:
            return max(log.max_offset - log.max_offset % log.file_size, log.min_offset)
        # A slave that ends before our first byte can only start over with what we still have.
        return max(offset, log.min_offset)

    def next_batch(self, log: LogBounds, max_bytes: int) -> Batch | None:
        """What to send now, None if there is nothing. Raises `HAFrameError` if the log begins beyond it."""
        if self._phase is not _Phase.TRANSFER or self.next_offset >= log.max_offset:
            return None
        if self.next_offset < log.min_offset:
            raise HAFrameError(
                f"slave needs {self.next_offset}, the log was deleted up to {log.min_offset} meanwhile"
            )
        segment = self._epochs.segment(self.next_offset)
        assert segment is not None, "a master's log always has an epoch"
        end = min(self.next_offset + max_bytes, segment.end_offset, log.max_offset)
        return Batch(self.next_offset, end - self.next_offset, segment.epoch, segment.start_offset)

    def frame(self, batch: Batch, size: int, log: LogBounds, now_ms: int) -> bytes:
        """Header for the first `size` bytes of `batch`, which the caller sends right behind it."""
        assert 0 < size <= batch.max_bytes and batch.offset == self.next_offset
        self.next_offset += size
        self._last_write_ms = now_ms
        self._sent_confirm = log.confirm_offset
        self._sent_epoch = batch.epoch
        if self._mark is None:
            # One mark is kept until it is acknowledged. If it moved with every send, as in RocketMQ, a slave
            # under steady load would look as if it never caught up.
            self._mark = (log.max_offset, now_ms)
        return Transfer(size, batch.offset, batch.epoch, batch.epoch_start, log.confirm_offset).encode()

    def heartbeat(self, log: LogBounds, now_ms: int) -> bytes:
        """An empty frame if one is due: after silence, or for a newer confirm offset or epoch."""
        if self._phase is not _Phase.TRANSFER:
            return b""
        segment = self._epochs.segment(self.next_offset)
        assert segment is not None, "a master's log always has an epoch"
        silent = now_ms - self._last_write_ms >= self._heartbeat_ms
        if not silent and log.confirm_offset <= self._sent_confirm and segment.epoch == self._sent_epoch:
            return b""
        self._sent_epoch = segment.epoch
        self._last_write_ms = now_ms
        self._sent_confirm = log.confirm_offset
        return Transfer(0, self.next_offset, segment.epoch, segment.start_offset, log.confirm_offset).encode()

    def caught_up_ms(self, log: LogBounds, now_ms: int) -> int | None:
        """`last_caught_up_ms`, which is now while nothing is missing at the slave."""
        if self.ack_offset >= log.max_offset:
            self.last_caught_up_ms = now_ms
        return self.last_caught_up_ms

    def unusually_silent(self, now_ms: int, max_lag_ms: int) -> bool:
        """Whether the slave has sent nothing for three quarters of `max_lag_ms`, or longer if it is often
        late, although it should have: it sends heartbeats often, or what it was sent so long ago is not
        acknowledged."""
        least_ms = max_lag_ms * 3 // 4
        if not self.silence.beats and (self._mark is None or now_ms - self._mark[1] <= least_ms):
            return False
        return self.silence.unusual(now_ms, least_ms, max_lag_ms)

    def expired(self, now_ms: int) -> bool:
        """Whether the slave was silent for too long."""
        return self.silence.silent_ms(now_ms) > self._timeout_ms


class Truncate(NamedTuple):
    """Cut the local log at `offset`; forget epochs that begin there or beyond: the stream brings them
    again."""

    offset: int


class StartOver(NamedTuple):
    """Discard the whole local log with its epochs; the next byte to be appended is that of `offset`."""

    offset: int


class Learn(NamedTuple):
    """Record these epochs durably, before any later `Append`."""

    epochs: tuple[EpochStart, ...]


class Append(NamedTuple):
    """Append these bytes, which belong at `offset`, the current end of the log. A view of the reader's
    buffer: copy it to keep it."""

    offset: int
    data: "memoryview"  # noqa: UP037  # mypyc finds it by this name only


class Confirm(NamedTuple):
    """The master's confirm offset, as far as this log reaches."""

    offset: int


Effect = Truncate | StartOver | Learn | Append | Confirm


class SlaveSession:
    """A slave's connection to its master, as the slave sees it."""

    def __init__(
        self,
        epochs: EpochCache,
        broker_id: int,
        *,
        heartbeat_ms: int,
        timeout_ms: int,
        now_ms: int,
        sync_from_last_file: bool = False,
        async_learner: bool = False,
    ) -> None:
        """`epochs` is the live cache of this slave's log."""
        self._epochs = epochs
        self._hello = SlaveHandshake(broker_id, sync_from_last_file, async_learner)
        self._heartbeat_ms = heartbeat_ms
        self._timeout_ms = timeout_ms
        self._reader = MasterFrameReader()
        self.silence = LinkSilence(now_ms)
        self._last_write_ms = now_ms
        self._master_epochs: EpochCache | None = None
        self._known_epoch = -1
        self._nothing_received = True
        self._begun = False
        """Whether the master has sent anything after the handshake."""
        self._acked = -1
        self._confirm = -1
        self.position = -1
        """End of the local log once all effects so far are done; -1 before the handshake."""
        self.master_epoch = -1
        """Newest epoch of the master's handshake."""
        self.master_max_offset = -1
        """End of the master's log as far as it is known here."""

    @property
    def transferring(self) -> bool:
        """Whether the common point was found; acks may be sent from here on."""
        return self._master_epochs is not None

    @property
    def acked(self) -> bool:
        """Whether the first ack was sent, which asks the master to begin."""
        return self._acked >= 0

    def open(self) -> bytes:
        """The first bytes to send."""
        return self._hello.encode()

    def receive(self, data: bytes, log: LogBounds, now_ms: int) -> list[Effect]:
        """Take the master's bytes; returns what to do to the log, in this order.

        `log` is the local log as it is now, all earlier effects done. `HAFrameError`: drop the link.
        """
        effects: list[Effect] = []
        heartbeat, begun = False, self._begun
        for frame in self._reader.feed(data):
            if isinstance(frame, Body):
                self.position += len(frame.data)
                effects.append(Append(frame.offset, frame.data))
            elif isinstance(frame, Transfer):
                heartbeat = frame.body_size == 0
                self._on_transfer(frame, effects)
            else:
                effects += self._on_handshake(frame, log)
        if begun:
            self.silence.received(now_ms, heartbeat=heartbeat)
        else:
            self.silence.excuse(now_ms)
        confirm = min(self._confirm, self.position)
        if confirm > log.confirm_offset:
            effects.append(Confirm(confirm))
        return effects

    def _on_handshake(self, frame: MasterHandshake, log: LogBounds) -> list[Effect]:
        if self._master_epochs is not None:
            raise HAFrameError("second handshake")
        try:
            master = EpochCache(frame.epochs)
        except ValueError as error:
            raise HAFrameError(f"the master's epochs are out of order: {error}") from None
        self._master_epochs = master
        self.master_epoch = frame.epoch
        self.master_max_offset = frame.max_offset
        if log.max_offset == 0:
            self.position = 0
            return [StartOver(0)] if len(self._epochs) else []
        point = consistent_point(self._epochs.entries, log.max_offset, frame.epochs, frame.max_offset)
        if point is None or point <= log.min_offset:
            # The logs have no byte in common that this one still has: all of it is another history.
            self.position = 0
            return [StartOver(0)]
        self.position = point
        self._known_epoch = max((epoch for epoch, start in self._epochs.entries if start < point), default=-1)
        return [Truncate(point)]

    def _on_transfer(self, frame: Transfer, effects: list[Effect]) -> None:
        if self._master_epochs is None:
            raise HAFrameError("transfer before the handshake")
        if self._acked < 0:
            raise HAFrameError("transfer before the first ack")
        self._begun = True
        self._confirm = frame.confirm_offset
        if frame.offset != self.position:
            if not self._nothing_received or 0 <= frame.offset < self.position:
                raise HAFrameError(f"transfer at {frame.offset}, the log ends at {self.position}")
            if frame.body_size == 0:
                return  # a heartbeat of a master whose log is empty, or begins beyond our end: see below
            # The master's log begins beyond our end: files expired, or only its last file was asked for.
            effects.append(StartOver(frame.offset))
            self.position = frame.offset
            self._known_epoch = -1
        if frame.body_size:
            self._nothing_received = False
        self.master_max_offset = max(self.master_max_offset, frame.offset + frame.body_size)
        self._learn(frame, effects)

    def _learn(self, frame: Transfer, effects: list[Effect]) -> None:
        """Epochs that begin at or before this frame and are not on record yet.

        The master's handshake is asked first: a RocketMQ master labels the last piece of an epoch with the
        *next* epoch, so the labels alone would leave epochs out.
        """
        if frame.epoch == self._known_epoch:
            return
        assert self._master_epochs is not None
        unknown = [
            entry
            for entry in self._master_epochs.between(frame.offset, frame.offset + 1)
            if self._known_epoch < entry.epoch <= frame.epoch
        ]
        newest = unknown[-1].epoch if unknown else self._known_epoch
        if frame.epoch > newest and frame.epoch_start <= frame.offset:
            unknown.append(EpochStart(frame.epoch, frame.epoch_start))
        if unknown:
            self._known_epoch = unknown[-1].epoch
            effects.append(Learn(tuple(unknown)))

    def ack(self, offset: int, now_ms: int) -> bytes:
        """The ack to send when the log is held up to `offset`, empty if the master knows that already."""
        if not self.transferring or offset <= self._acked:
            return b""
        self._acked = offset
        self._last_write_ms = now_ms
        return Ack(offset).encode()

    def heartbeat(self, now_ms: int) -> bytes:
        """Repeats the last ack after some silence."""
        if self._acked < 0 or now_ms - self._last_write_ms < self._heartbeat_ms:
            return b""
        self._last_write_ms = now_ms
        return Ack(self._acked).encode()

    def expired(self, now_ms: int) -> bool:
        """Whether the master was silent for too long."""
        return self.silence.silent_ms(now_ms) > self._timeout_ms
