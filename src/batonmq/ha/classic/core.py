"""The two ends of a replication link without epochs, without I/O: `MasterSession` and `SlaveSession`.

A session lives as long as one connection. Bytes and the time go in; frames to send, and for the slave the
changes to make to its log, come out. What a session must know of the log is passed in as `LogBounds`.

    slave                                   master
      report(where to begin)  ------------>
                 <-------------------------  transfer, transfer, …
      compare what it has, append the rest
      report(end of log)  ---------------->

RocketMQ's slave reports the end of its log, and takes whatever its master sends from there. If the master
lost the end of its log meanwhile, the slave then holds two histories. Here the slave reports the beginning of
its last record instead. The master sends that record again, and the slave compares it with its own: the two
logs are equal up to there if it is the same, as its store time and host are in it. To the master this looks
like any slave that lacks one record. Until it was compared the slave reports nothing more, and the first
report releases no send here: with RocketMQ's master, it does. Source: RocketMQ's DefaultHAClient and
DefaultHAConnection.
"""

from __future__ import annotations

from typing import NamedTuple

from batonmq.protocol.ha_classic_frames import (
    ClassicTransfer,
    ReportReader,
    TransferReader,
    report,
    transfer_header,
)
from batonmq.protocol.ha_frames import Body, HAFrameError

ANONYMOUS = -1
"""Broker id of a slave that did not say which it is: RocketMQ's stream carries no ids."""
HOW_TO_CHOOSE = (
    "decide which log to keep. To keep the master's: stop the slave, move its store directory away and start "
    "it with an empty one. To keep the slave's: make it the master"
)


class OtherHistory(HAFrameError):
    """The two logs are not one the begin of the other; nothing may be appended."""


class LogBounds(NamedTuple):
    """What a session needs to know of the local log. Offsets are physical, in bytes."""

    min_offset: int
    max_offset: int
    """Exclusive end."""
    file_size: int = 1 << 30
    """Size of one commit log file."""


class MasterSession:
    """One slave's connection as its master sees it."""

    def __init__(
        self, *, introduces: bool, whole_log: bool, heartbeat_ms: int, timeout_ms: int, now_ms: int
    ) -> None:
        """`introduces`: the slave's first number is its broker id. `whole_log`: an empty slave gets all of
        the log, not only the last file. `heartbeat_ms`, `timeout_ms`: see `HAConfig`."""
        self._introduces = introduces
        self._whole_log = whole_log
        self._heartbeat_ms = heartbeat_ms
        self._timeout_ms = timeout_ms
        self._reader = ReportReader()
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self._transfer_from = -1

        self.slave_id = ANONYMOUS
        self.ack_offset = -1
        """The last report; -1 before the first one."""
        self.confirmed = False
        """The slave holds this log up to `ack_offset`: it began with no log, or it has reported again after
        its first report, which says only where its own log ends, whatever history that has."""
        self.next_offset = -1
        """Next byte to send; -1 before the first report."""

    @property
    def transferring(self) -> bool:
        return self.next_offset >= 0

    @property
    def acked_of_sent(self) -> int:
        """All that was sent up to here is acknowledged; where sending began, before the first ack of it."""
        return max(self.ack_offset, self._transfer_from)

    def receive(self, data: bytes, log: LogBounds, now_ms: int) -> None:
        """Take the slave's bytes. `HAFrameError`: drop the link."""
        self._last_read_ms = now_ms
        for number in self._reader.feed(data):
            if self._introduces:
                self._introduces = False
                self.slave_id = number
            elif self.next_offset < 0:
                self._begin(number, log)
            elif not self.ack_offset <= number <= self.next_offset:
                # An ack of what was never sent must not release anything (apache/rocketmq #3015).
                raise HAFrameError(
                    f"report of {number} after {self.ack_offset}, sent up to {self.next_offset}"
                )
            else:
                self.ack_offset = number
                self.confirmed = True

    def _begin(self, offset: int, log: LogBounds) -> None:
        if offset > log.max_offset:
            raise OtherHistory(
                f"its log reaches to {offset}, the master's only to {log.max_offset}: the master lost what "
                f"this slave still has. It gets nothing; {HOW_TO_CHOOSE}"
            )
        if offset == 0:
            start = 0 if self._whole_log else log.max_offset - log.max_offset % log.file_size
            self.next_offset = max(start, log.min_offset)
        elif offset < log.min_offset:
            raise OtherHistory(
                f"its log ends at {offset}, the master's begins at {log.min_offset}: what lies between is "
                "deleted. Stop the slave, move its store directory away and start it with an empty one"
            )
        else:
            self.next_offset = offset
        self._transfer_from = self.next_offset
        self.ack_offset = offset
        self.confirmed = offset == 0

    def sendable(self, log: LogBounds) -> int:
        """Bytes that the slave has not been sent. Raises `HAFrameError` if the log begins beyond them."""
        if self.next_offset < 0:
            return 0
        if self.next_offset < log.min_offset:
            raise HAFrameError(
                f"slave needs {self.next_offset}, the log was deleted up to {log.min_offset} meanwhile"
            )
        return log.max_offset - self.next_offset

    def frame(self, size: int, now_ms: int) -> bytes:
        """Header for the next `size` bytes, which the caller sends right behind it."""
        header = transfer_header(self.next_offset, size)
        self.next_offset += size
        self._last_write_ms = now_ms
        return header

    def heartbeat(self, now_ms: int) -> bytes:
        """An empty frame if one is due after silence."""
        if self.next_offset < 0 or now_ms - self._last_write_ms < self._heartbeat_ms:
            return b""
        self._last_write_ms = now_ms
        return transfer_header(self.next_offset, 0)

    def expired(self, now_ms: int) -> bool:
        """Whether the slave was silent for too long."""
        return now_ms - self._last_read_ms > self._timeout_ms


class Compare(NamedTuple):
    """These bytes must be those of the local log at `offset`; otherwise drop the link (`OtherHistory`)."""

    offset: int
    data: "memoryview"  # noqa: UP037  # mypyc finds it by this name only


class Append(NamedTuple):
    """Append these bytes, which belong at `offset`. A view of the reader's buffer: copy it to keep it."""

    offset: int
    data: "memoryview"  # noqa: UP037  # mypyc finds it by this name only


Effect = Compare | Append


class SlaveSession:
    """A slave's connection to its master, as the slave sees it."""

    def __init__(
        self,
        *,
        compare_from: int,
        end: int,
        heartbeat_ms: int,
        timeout_ms: int,
        patience_ms: int,
        now_ms: int,
    ) -> None:
        """The local log ends at `end`; what it has from `compare_from` on is compared (0 with an empty log).
        `patience_ms`: how long the master may send nothing while that lasts."""
        assert 0 < compare_from < end or compare_from == end == 0
        self._end = end
        self._heartbeat_ms = heartbeat_ms
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms
        self._reader = TransferReader()
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self._last_body_ms = now_ms
        self._empty = end == 0
        self.compared_from = compare_from
        """Where the comparison of the two logs begins."""
        self.reported = compare_from
        """The last report."""
        self.position = compare_from
        """Next byte expected."""

    @property
    def transferring(self) -> bool:
        """Whether the logs were found equal; the end of the log may be reported from here on."""
        return self.position >= self._end

    def open(self) -> bytes:
        """The first report."""
        return report(self.reported)

    def receive(self, data: bytes, now_ms: int) -> list[Effect]:
        """Take the master's bytes; returns what to do to the log, in this order. `HAFrameError`: drop the
        link."""
        self._last_read_ms = now_ms
        effects: list[Effect] = []
        for frame in self._reader.feed(data):
            if isinstance(frame, Body):
                self._on_body(frame, effects, now_ms)
            elif frame.offset != self.position:
                self._on_other_offset(frame)
        return effects

    def _on_other_offset(self, frame: ClassicTransfer) -> None:
        if not self._empty:
            raise HAFrameError(f"transfer at {frame.offset}, the log goes on at {self.position}")
        if frame.body_size:
            # The master begins with its last file, or with the first that it still has.
            self._empty = False
            self.position = self._end = frame.offset

    def _on_body(self, frame: Body, effects: list[Effect], now_ms: int) -> None:
        self._last_body_ms = now_ms
        self._empty = False
        offset, piece = frame.offset, frame.data
        self.position = offset + len(piece)
        known = self._end - offset
        if known > 0:
            effects.append(Compare(offset, piece[:known]))
            piece = piece[known:]
            offset = self._end
        if len(piece):
            effects.append(Append(offset, piece))

    def report(self, offset: int, now_ms: int) -> bytes:
        """The report when the log is held up to `offset`; empty if the master knows that already."""
        if not self.transferring or offset <= self.reported:
            return b""
        self.reported = offset
        self._last_write_ms = now_ms
        return report(offset)

    def heartbeat(self, now_ms: int) -> bytes:
        """Repeats the last report after some silence; none while logs are compared, see `MasterSession`."""
        if not self.transferring or now_ms - self._last_write_ms < self._heartbeat_ms:
            return b""
        self._last_write_ms = now_ms
        return report(self.reported)

    def expired(self, now_ms: int) -> bool:
        """Whether the master was silent for too long."""
        return now_ms - self._last_read_ms > self._timeout_ms

    def check_patience(self, now_ms: int) -> None:
        """Raises `OtherHistory` if the master does not send what this log has."""
        if not self.transferring and now_ms - self._last_body_ms > self._patience_ms:
            raise OtherHistory(
                f"the master does not send bytes {self.position} to {self._end}, which this slave has: its "
                f"log is shorter, or begins later. Nothing was appended; {HOW_TO_CHOOSE}"
            )
