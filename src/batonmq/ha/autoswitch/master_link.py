"""A slave that connected to us: the shell around `MasterSession`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from batonmq.ha.autoswitch.core import LogBounds, MasterSession, whole_records
from batonmq.ha.config import MAX_TRANSFER_BATCH
from batonmq.ha.link import INTRODUCTION_MS
from batonmq.ha.read_ahead import ReadAhead
from batonmq.ha.sending_link import TURN_BYTES, SendingLink
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.ha.autoswitch.local import LocalReplica
    from batonmq.ha.autoswitch.sync_state import Replica

log = logging.getLogger(__name__)


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


class MasterLink(SendingLink):
    """One slave's connection."""

    def __init__(self, local: LocalReplica, master: MasterSide) -> None:
        super().__init__(local)
        config, now_ms = local.config, local.running.now_ms()
        self._local, self._master = local, master
        self._opened_ms = now_ms
        self.replica: Replica | None = None
        self.session = MasterSession(
            local.epochs,
            local_id=local.broker_id,
            heartbeat_ms=config.beat_ms,
            timeout_ms=config.ha_housekeeping_interval,
            now_ms=now_ms,
        )

    def _admitted(self) -> bool:
        return self._master.admit(self)

    def _gone(self) -> None:
        replica = self.replica
        if replica is not None and self.reason and self._master.knows(replica.broker_id):
            log.info("slave %d at %s is gone: %s", replica.broker_id, self.peer, self.reason)
        self._master.left(self)

    def _warn(self, text: str) -> None:
        self._master.warn(self.peer, text)

    def data_received(self, data: bytes) -> None:
        local, session = self._local, self.session
        if self._transport is None:
            return
        known, acked = session.transferring, session.ack_offset
        bounds = local.bounds()
        try:
            data = self._proved(data)
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
            self._go_on()
        if session.transferring and not known:
            self.pump()
            self._heartbeat(local.bounds(), local.running.now_ms())

    def _misbehaved(self, error: HAFrameError | StoreError) -> None:
        self._warn(f"(slave {self.session.slave_id}) dropped: {error}")
        self.close(str(error))

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
                    self._pump_soon()
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
                    view = self._read_ahead(self._ahead, batch.offset, batch.max_bytes)
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

    def _heartbeat(self, bounds: LogBounds, now_ms: int) -> None:
        frame = self.session.heartbeat(bounds, now_ms)
        if frame and self._transport is not None:
            self._transport.write(frame)

    def tick(self, bounds: LogBounds, now_ms: int) -> None:
        """Look at heartbeats and silence."""
        self._rate()
        session = self.session
        if session.slave_id is None and now_ms - self._opened_ms > INTRODUCTION_MS:
            self._warn("dropped: did not say in time which slave it is")
            self.close("no introduction")
        elif session.expired(now_ms):
            self.close("silent for too long")
        elif not self._paused:
            self._heartbeat(bounds, now_ms)
