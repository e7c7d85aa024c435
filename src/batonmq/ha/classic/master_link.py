"""A slave that connected to us: the shell around `MasterSession`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from batonmq.ha.classic.copies import Held
from batonmq.ha.classic.core import ANONYMOUS, LogBounds, MasterSession, OtherHistory
from batonmq.ha.read_ahead import ReadAhead
from batonmq.ha.sending_link import TURN_BYTES, SendingLink
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.ha.classic.local import LocalReplica

log = logging.getLogger(__name__)

FAR_BEHIND_BYTES: Final = 8 * 1024 * 1024
"""A slave that lags by more is sent what a thread reads: the log may be out of memory there."""


class MasterSide(Protocol):
    """What a link needs of the master it belongs to."""

    def admit(self, link: MasterLink) -> bool:
        """The link is connected. False: it was closed again."""

    def entered(self, link: MasterLink) -> None:
        """The slave has reported what it has; sets `counts_above`."""

    def acked(self, link: MasterLink) -> None:
        """The slave has acknowledged more."""

    def left(self, link: MasterLink) -> None:
        """The link is closed."""

    def warn(self, peer: str, text: str) -> None:
        """Log what no replica does."""


class MasterLink(SendingLink):
    """One slave's connection."""

    def __init__(self, local: LocalReplica, master: MasterSide) -> None:
        super().__init__(local)
        config = local.config
        self._local, self._master = local, master
        self.counts_above = -1
        """An older link that is open may be the same slave's: how far it had been sent the log (`copies.py`).
        -1: there is none."""
        self.session = MasterSession(
            introduces=local.security.key is not None,
            whole_log=config.ha_send_whole_log,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            timeout_ms=config.ha_housekeeping_interval,
            now_ms=local.clock.monotonic_ms(),
        )

    @property
    def held(self) -> Held:
        """What the slave has, for `acked_by`."""
        return Held(self.ack_offset, self.counts_above)

    @property
    def ack_offset(self) -> int:
        """The slave has the log up to here, as far as it is known; -1 before that is known."""
        return self.session.ack_offset if self.session.confirmed else -1

    def __str__(self) -> str:
        slave_id = self.session.slave_id
        return f"slave at {self.peer}" if slave_id == ANONYMOUS else f"slave {slave_id} at {self.peer}"

    def _admitted(self) -> bool:
        return self._master.admit(self)

    def _gone(self) -> None:
        if self.reason and self.session.transferring:
            log.info("%s is gone: %s", self, self.reason)
        self._master.left(self)

    def _warn(self, text: str) -> None:
        self._master.warn(self.peer, text)

    def data_received(self, data: bytes) -> None:
        local, session = self._local, self.session
        if self._transport is None:
            return
        known, acked = session.transferring, self.ack_offset
        try:
            data = self._proved(data)
            if not data:
                return
            session.receive(data, local.bounds(), local.clock.monotonic_ms())
        except HAFrameError as error:
            self._misbehaved(error)
            return
        if session.transferring and not known:
            self._master.entered(self)
            self.pump()
        if self.ack_offset != acked:
            self._window.acked(session.ack_offset, local.clock.monotonic_us())
            self._master.acked(self)
            self._go_on()

    def _misbehaved(self, error: HAFrameError | StoreError) -> None:
        what = "refused" if isinstance(error, OtherHistory) else "dropped"
        self._warn(f"{what}: {error}")
        self.close(str(error))

    def pump(self) -> None:
        """Send as much as the socket takes, and flow control allows; a long way in several loop turns."""
        transport, local, session = self._transport, self._local, self.session
        if transport is None or self._paused or self._resume is not None:
            return
        bounds = local.bounds()
        now_ms = local.clock.monotonic_ms()
        try:
            behind = session.sendable(bounds)
            if behind <= 0:
                self._ahead = None
                return
            if behind > FAR_BEHIND_BYTES and self._ahead is None:
                self._ahead = ReadAhead(local.store, self.pump)
            elif behind <= TURN_BYTES:
                self._ahead = None
            if not self._send(transport, min(TURN_BYTES, local.config.ha_send_buffer_size), bounds, now_ms):
                self._pump_soon()
        except (HAFrameError, StoreError) as error:
            self._misbehaved(error)

    def _send(self, transport: asyncio.Transport, left: int, bounds: LogBounds, now_ms: int) -> bool:
        """Send about `left` bytes. False: there is more to send now."""
        local, session, flow = self._local, self.session, self._flow
        limit = local.config.ha_transfer_batch_size
        while not self._paused:
            behind = bounds.max_offset - session.next_offset
            if behind <= 0:
                return True
            if left <= 0:
                return False
            if flow is not None:
                allowed = flow.allowance(now_ms)
                if not allowed:
                    self._pump_later(flow.wait_ms())
                    return True
                limit = min(local.config.ha_transfer_batch_size, allowed)
            if self._ahead is None:
                view = local.store.read(session.next_offset, min(limit, behind))
            else:
                if session.next_offset - session.acked_of_sent >= self._window.size:
                    self._window_full = True
                    return True
                ahead = self._read_ahead(self._ahead, session.next_offset, min(limit, behind))
                if ahead is None:
                    return True  # what reads ahead pumps
                view = ahead
            size = len(view)
            if not size:
                return True
            transport.writelines([session.frame(size, now_ms), view])
            self._bytes += size
            left -= size
            if self._ahead is not None:
                self._window.sent(session.next_offset, session.acked_of_sent, local.clock.monotonic_us())
            if flow is not None:
                flow.sent(size)
        return True

    def tick(self, now_ms: int) -> None:
        """Look at heartbeats and silence. RocketMQ's slave may report for the first time after
        haSendHeartbeatInterval, so a silent connection is not dropped sooner than any other."""
        self._rate()
        if self.session.expired(now_ms):
            if not self.session.transferring:
                self._warn("dropped: did not say in time where its log ends")
            self.close("silent for too long")
        elif not self._paused and self._transport is not None:
            frame = self.session.heartbeat(now_ms)
            if frame:
                self._transport.write(frame)
