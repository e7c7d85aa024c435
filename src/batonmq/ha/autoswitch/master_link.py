"""A slave that connected to us: the shell around `MasterSession`."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Protocol

from batonmq.ha.autoswitch.core import Batch, LogBounds, MasterSession, whole_records
from batonmq.ha.config import MAX_TRANSFER_BATCH
from batonmq.ha.flow import FlowControl, Window
from batonmq.ha.link import INTRODUCTION_MS, Link
from batonmq.ha.proof import MasterProof
from batonmq.ha.read_ahead import ReadAhead
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.ha.autoswitch.local import LocalReplica
    from batonmq.ha.autoswitch.sync_state import Replica

log = logging.getLogger(__name__)

TURN_BYTES = 256 * 1024
"""What one loop turn sends to a slave that catches up. Producers wait that long for their answers: with 1 MiB
their p99 is half as long again, with less the slave catches up no slower."""
MAP_REMAINS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The file cannot be opened, which says nothing about the disk: its map can be read."""


class MasterSide(Protocol):
    """What a link needs of the master it belongs to."""

    def admit(self, link: MasterLink) -> bool:
        """The link is connected. False: it was closed again."""

    def entered(self, link: MasterLink) -> None:
        """The link is in transfer; sets its `replica`."""

    def acked(self, link: MasterLink) -> None:
        """The slave has acknowledged more."""

    def left(self, link: MasterLink) -> None:
        """The link is closed."""

    def counts(self, broker_id: int) -> bool:
        """Whether this slave counts for the confirm offset, and so may be elected."""

    def knows(self, broker_id: int) -> bool:
        """Whether the controller has given out this id."""

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
        now_ms = local.running.now_ms()
        key = local.security.key
        self._proof = MasterProof(key, local.nonce()) if key is not None else None
        self._flow = (
            FlowControl(config.max_ha_transfer_byte_in_second, local.clock.monotonic_ms())
            if config.ha_flow_control_enable
            else None
        )
        self._opened_ms = now_ms
        self.replica: Replica | None = None
        self.session = MasterSession(
            local.epochs,
            local_id=local.broker_id,
            heartbeat_ms=config.beat_ms,
            timeout_ms=config.ha_housekeeping_interval,
            now_ms=now_ms,
        )

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
        replica = self.replica
        if replica is not None and self.reason and self._master.knows(replica.broker_id):
            log.info("slave %d at %s is gone: %s", replica.broker_id, self.peer, self.reason)
        self._master.left(self)

    def data_received(self, data: bytes) -> None:
        local, session = self._local, self.session
        if self._transport is None:
            return
        known, acked = session.transferring, session.ack_offset
        bounds = local.bounds()
        try:
            if self._proof is not None and not self._proof.done:
                answer, data = self._proof.receive(data)
                if answer:
                    self._transport.write(answer)
                if not data:
                    return
            answer = session.receive(data, bounds, local.running.now_ms())
        except HAFrameError as error:
            self._misbehaved(error)
            return
        if answer:
            self._transport.write(answer)
        if session.transferring and not known:
            self._master.entered(self)
        if session.ack_offset != acked:
            self._window.acked(session.ack_offset, local.clock.monotonic_us())
            self._master.acked(self)
            if self._window_full:
                self._window_full = False
                self.pump()
        if session.transferring and not known:
            self.pump()
            self._heartbeat(local.bounds(), local.running.now_ms())

    def _misbehaved(self, error: HAFrameError | StoreError) -> None:
        self._master.warn(self.peer, f"(slave {self.session.slave_id}) dropped: {error}")
        self.close(str(error))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def pump(self) -> None:
        """Send as much as the socket takes, and flow control allows; a long way in several loop turns."""
        transport, local, session = self._transport, self._local, self.session
        if transport is None or self._paused or self._resume is not None or not session.transferring:
            return
        bounds = local.bounds()
        if session.next_offset >= bounds.max_offset:
            return
        now_ms = local.running.now_ms()
        limit = local.config.ha_transfer_batch_size
        # The socket of a slave that catches up takes ten megabytes while it is fed, and producers wait.
        left = min(TURN_BYTES, local.config.ha_send_buffer_size)
        # Who is far behind and no member is not elected: its frames may end anywhere. One that is about to
        # become a member gets whole records already.
        catches_up = bounds.max_offset - session.next_offset > left and not self._electable
        if not catches_up:
            self._ahead = None
        elif self._ahead is None:
            self._ahead = ReadAhead(local.store, self.pump)
        flow = self._flow
        try:
            while not self._paused:
                if left <= 0:
                    self._resume = asyncio.get_running_loop().call_soon(self._resumed)
                    return
                if flow is not None:
                    allowed = flow.allowance(local.clock.monotonic_ms())
                    if not allowed:
                        self._pump_later(flow.wait_ms())
                        return
                    limit = min(local.config.ha_transfer_batch_size, allowed)
                if self._ahead and session.next_offset - session.acked_of_sent >= self._window.size:
                    self._window_full = True
                    return
                batch = session.next_batch(bounds, limit if catches_up else MAX_TRANSFER_BATCH)
                if batch is None:
                    return
                if self._ahead:
                    view = self._read_ahead(batch)
                    if view is None:
                        return  # what reads ahead pumps
                else:
                    view = local.store.read(batch.offset, batch.max_bytes)
                if not catches_up:
                    ends = len(view) < MAX_TRANSFER_BATCH
                    view = view[: whole_records(view, limit, batch.offset, ends=ends)]
                size = len(view)
                if not size:
                    return
                transport.writelines([session.frame(batch, size, bounds, now_ms), view])
                self._bytes += size
                left -= size
                if self._ahead:
                    self._window.sent(session.next_offset, session.acked_of_sent, local.clock.monotonic_us())
                if flow is not None:
                    flow.sent(size)
        except (HAFrameError, StoreError) as error:
            self._misbehaved(error)

    @property
    def _electable(self) -> bool:
        return self.replica is not None and self._master.counts(self.replica.broker_id)

    def _read_ahead(self, batch: Batch) -> memoryview | None:
        """What a thread read; None if it has not yet, or the disk has failed and the link is closed."""
        assert self._ahead is not None
        try:
            return self._ahead.take(batch.offset, batch.max_bytes)
        except OSError as error:
            self._master.warn(
                self.peer, f"the part of the log that comes next for it cannot be read: {error}"
            )
            if error.errno in MAP_REMAINS:
                return self._local.store.read(batch.offset, batch.max_bytes)
            # Reading the map instead would be a SIGBUS. The slave asks again.
            self.close("the log cannot be read")
            return None

    def _pump_later(self, wait_ms: int) -> None:
        self._resume = asyncio.get_running_loop().call_later(wait_ms / 1000, self._resumed)

    def _resumed(self) -> None:
        self._resume = None
        self.pump()

    def _heartbeat(self, bounds: LogBounds, now_ms: int) -> None:
        frame = self.session.heartbeat(bounds, now_ms)
        if frame and self._transport is not None:
            self._transport.write(frame)

    def tick(self, bounds: LogBounds, now_ms: int) -> None:
        """Look at heartbeats and silence."""
        self._rate()
        session = self.session
        if session.slave_id is None and now_ms - self._opened_ms > INTRODUCTION_MS:
            self._master.warn(self.peer, "dropped: did not say in time which slave it is")
            self.close("no introduction")
        elif session.expired(now_ms):
            self.close("silent for too long")
        elif not self._paused:
            self._heartbeat(bounds, now_ms)
