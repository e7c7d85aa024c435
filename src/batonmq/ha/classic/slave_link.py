"""A slave's connection to its master: the shell around `SlaveSession`, which applies its effects in order."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Protocol

from batonmq.ha.classic.core import HOW_TO_CHOOSE, Compare, Effect, OtherHistory, SlaveSession
from batonmq.ha.link import Link
from batonmq.ha.proof import ProofFailed, SlaveProof
from batonmq.protocol.ha_classic_frames import report
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.ha.classic.local import LocalReplica


class SlaveSide(Protocol):
    """What a link needs of the slave it belongs to."""

    def opened(self, link: SlaveLink) -> bool:
        """The link is connected. False: this replica no longer follows that address."""

    def ended(self, link: SlaveLink) -> None:
        """The link is closed, and touches the log no more."""

    def applied(self) -> None:
        """The log has grown."""


class SlaveLink(Link):
    """One connection to the master."""

    def __init__(self, local: LocalReplica, slave: SlaveSide, address: str) -> None:
        config, store, now_ms = local.config, local.store, local.clock.monotonic_ms()
        super().__init__(config.max_lag_ms)
        self._local = local
        self._slave = slave
        self.address = address
        """The master's replication port, ``host:port``."""
        end = store.max_offset
        begin = store.last_record_begin()
        if local.sync_flush:
            # The first report counts as an acknowledgement.
            begin = min(begin, store.flushed_offset)
        # 0 would mean an empty log to the master.
        compare_from = min(max(begin, 1), end - 1) if end else 0
        self.session = SlaveSession(
            compare_from=compare_from,
            end=end,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            timeout_ms=config.ha_housekeeping_interval,
            patience_ms=max(config.ha_connect_timeout, 2 * config.ha_send_heartbeat_interval),
            now_ms=now_ms,
        )
        key = local.security.key
        self._proof = SlaveProof(key, local.nonce()) if key is not None else None
        self._opened_ms = now_ms
        self._introduced = False
        self.untrusted = False
        """Trying again soon is useless: one side has not proved to belong to the group, or the logs
        differ."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_read_ms = 0
        self.last_write_ms = 0

    @property
    def following(self) -> bool:
        """Whether this log was found to be the begin of the master's."""
        return self._introduced and self.session.transferring

    @property
    def protocol(self) -> asyncio.Protocol:
        """The link as the loop wants it."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        if not self._slave.opened(self):
            self.close("the role has changed")
            return
        self._opened_ms = self._local.clock.monotonic_ms()
        if self._proof is None:
            self._introduced = True
            self._write(self.session.open())
        else:
            self._write(self._proof.open())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self.reason = str(exc) if exc else "closed by the master"
            self._transport = None
            if isinstance(exc, ssl.SSLError):
                self.untrusted = True
            elif self._proof is not None and not self._proof.done:
                self.untrusted = True
                self.reason += (
                    " before it proved to know haSecret: is the same one set there? And haTlsEnable?"
                )
            elif not self.session.transferring:
                self.untrusted = True
                self.reason += " while the logs were compared; the master's log says why"
        self._slave.ended(self)
        if not self.ended.done():
            self.ended.set_result(None)

    async def settled(self) -> None:
        """Nothing is under way once the link is closed."""

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)
            self.last_write_ms = self._local.clock.now_ms()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        local = self._local
        self.last_read_ms = local.clock.now_ms()
        self._bytes += len(data)
        try:
            if self._proof is not None and not self._proof.done:
                answer, data = self._proof.receive(data)
                if self._proof.done:
                    self._introduced = True
                    self._write(answer + report(local.broker_id) + self.session.open())
                if not data:
                    return
            for effect in self.session.receive(data, local.clock.monotonic_ms()):
                self._apply(effect)
        except HAFrameError as error:
            self._refuse(error)
        except (OSError, StoreError) as error:
            self.close(f"cannot append to the log: {error}")
        else:
            self._slave.applied()
            self.acknowledge()

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, Compare):
            self._compare(effect)
        else:
            self._local.store.append_raw(effect.offset, effect.data)

    def _compare(self, effect: Compare) -> None:
        store, offset, data = self._local.store, effect.offset, effect.data
        while len(data):
            own = store.read(offset, len(data))
            size = len(own)
            if not size or own != data[:size]:
                raise OtherHistory(
                    f"the master has other bytes than this slave behind {self.session.compared_from}: the "
                    f"logs have different histories. Nothing was appended; {HOW_TO_CHOOSE}"
                )
            offset += size
            data = data[size:]

    def _refuse(self, error: HAFrameError) -> None:
        self.untrusted = isinstance(error, ProofFailed | OtherHistory)
        self.close(str(error))

    def acknowledge(self) -> None:
        """Report how far this log is safe in the sense of flushDiskType."""
        if not self.following:
            return
        local, store = self._local, self._local.store
        offset = store.flushed_offset if local.sync_flush else store.max_offset
        self._write(self.session.report(offset, local.clock.monotonic_ms()))

    def tick(self, now_ms: int) -> None:
        self._rate()
        if not self._introduced:
            if now_ms - self._opened_ms > self._local.config.ha_connect_timeout:
                self.untrusted = True
                self.close("haSecret is set here, and the master does not answer to it")
            return
        try:
            self.session.check_patience(now_ms)
        except OtherHistory as error:
            self._refuse(error)
            return
        if self.session.expired(now_ms):
            self.close("silent for too long")
        else:
            self._write(self.session.heartbeat(now_ms))
