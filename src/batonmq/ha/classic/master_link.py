"""A slave that connected to us: the shell around `MasterSession`."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Protocol

from batonmq.ha.classic.copies import Held
from batonmq.ha.classic.core import ANONYMOUS, LogBounds, MasterSession, OtherHistory
from batonmq.ha.flow import FlowControl, Window
from batonmq.ha.link import Link
from batonmq.ha.proof import MasterProof
from batonmq.ha.read_ahead import ReadAhead
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.ha.classic.local import LocalReplica

log = logging.getLogger(__name__)

TURN_BYTES = 256 * 1024
"""What one loop turn sends to a slave. Producers wait that long for their answers."""
FAR_BEHIND_BYTES = 8 * 1024 * 1024
"""A slave that lags by more is sent what a thread reads: the log may be out of memory there."""
MAP_REMAINS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The file cannot be opened, which says nothing about the disk: its map can be read."""


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


class MasterLink(Link):
    """One slave's connection. With a shared secret the slave gets nothing, and nothing it says is believed,
    before it has proved to know the secret."""

    def __init__(self, local: LocalReplica, master: MasterSide) -> None:
        config = local.config
        super().__init__(config.max_lag_ms)
        self._local = local
        self._master = master
        self._paused = False
        self._resume: asyncio.Handle | None = None
        """Set while `pump` is to go on by itself, later."""
        self._ahead: ReadAhead | None = None
        """While the slave is far behind. It refers to this link, so a link that ends lets go of it."""
        self._window = Window()
        self._window_full = False
        """The next ack pumps."""
        now_ms = local.clock.monotonic_ms()
        key = local.security.key
        self._proof = MasterProof(key, local.nonce()) if key is not None else None
        self._flow = (
            FlowControl(config.max_ha_transfer_byte_in_second, now_ms)
            if config.ha_flow_control_enable
            else None
        )
        self.counts_above = -1
        """An older link that is open may be the same slave's: how far it had been sent the log (`copies.py`).
        -1: there is none."""
        self.session = MasterSession(
            introduces=key is not None,
            whole_log=config.ha_send_whole_log,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            timeout_ms=config.ha_housekeeping_interval,
            now_ms=now_ms,
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        if not self._master.admit(self):
            return
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=self._local.config.ha_send_buffer_size)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self.reason = str(exc) if exc else "closed by the slave"
            self._transport = None
            if self._proof is not None and self._proof.challenged and not self._proof.done:
                self._master.warn(
                    self.peer,
                    "went away instead of proving the secret: is haSecret the same on both sides?",
                )
        if self._resume is not None:
            self._resume.cancel()
        self._ahead = None
        if self.reason and self.session.transferring:
            log.info("%s is gone: %s", self, self.reason)
        self._master.left(self)

    def data_received(self, data: bytes) -> None:
        local, session = self._local, self.session
        if self._transport is None:
            return
        known, acked = session.transferring, self.ack_offset
        try:
            if self._proof is not None and not self._proof.done:
                answer, data = self._proof.receive(data)
                if answer:
                    self._transport.write(answer)
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
            if self._window_full:
                self._window_full = False
                self.pump()

    def _misbehaved(self, error: HAFrameError | StoreError) -> None:
        what = "refused" if isinstance(error, OtherHistory) else "dropped"
        self._master.warn(self.peer, f"{what}: {error}")
        self.close(str(error))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

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
                self._resume = asyncio.get_running_loop().call_soon(self._resumed)
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
                    self._resume = asyncio.get_running_loop().call_later(flow.wait_ms() / 1000, self._resumed)
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

    def _read_ahead(self, ahead: ReadAhead, offset: int, size: int) -> memoryview | None:
        """What a thread read; None if it has not yet, or the disk has failed and the link is closed."""
        try:
            return ahead.take(offset, size)
        except OSError as error:
            self._master.warn(
                self.peer, f"the part of the log that comes next for it cannot be read: {error}"
            )
            if error.errno in MAP_REMAINS:
                return self._local.store.read(offset, size)
            # Reading the map instead would be a SIGBUS. The slave asks again.
            self.close("the log cannot be read")
            return None

    def _resumed(self) -> None:
        self._resume = None
        self.pump()

    def tick(self, now_ms: int) -> None:
        """Look at heartbeats and silence. RocketMQ's slave may report for the first time after
        haSendHeartbeatInterval, so a silent connection is not dropped sooner than any other."""
        self._rate()
        if self.session.expired(now_ms):
            if not self.session.transferring:
                self._master.warn(self.peer, "dropped: did not say in time where its log ends")
            self.close("silent for too long")
        elif not self._paused and self._transport is not None:
            frame = self.session.heartbeat(now_ms)
            if frame:
                self._transport.write(frame)
