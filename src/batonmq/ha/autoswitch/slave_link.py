"""A slave's connection to its master: the shell around `SlaveSession`, which applies its effects in order."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from batonmq.ha.autoswitch.core import Append, Confirm, Effect, Learn, SlaveSession, StartOver, Truncate
from batonmq.ha.autoswitch.local import ForeignMaster
from batonmq.ha.link import Link
from batonmq.ha.proof import ProofFailed, SlaveProof
from batonmq.net.errors import NetError
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.ha.autoswitch.local import LocalReplica

log = logging.getLogger(__name__)


class SlaveSide(Protocol):
    """What a link needs of the slave it belongs to."""

    def opened(self, link: SlaveLink) -> bool:
        """The link is connected. False: this replica no longer follows that address."""

    def ended(self, link: SlaveLink) -> None:
        """The link is closed, and touches the log no more."""

    def applied(self) -> None:
        """The log has grown, was cut, or is confirmed further."""

    async def flush_settled(self) -> None:
        """Wait for a flush under way: a log must not be cut under one."""


class SlaveLink(Link):
    """One connection to the master."""

    def __init__(self, local: LocalReplica, slave: SlaveSide, address: str) -> None:
        config = local.config
        super().__init__(config.max_lag_ms)
        self._local = local
        self._slave = slave
        self.address = address
        """The master's replication port, ``host:port``."""
        self.session = SlaveSession(
            local.epochs,
            local.broker_id,
            heartbeat_ms=config.beat_ms,
            timeout_ms=config.ha_housekeeping_interval,
            now_ms=local.running.now_ms(),
            sync_from_last_file=config.sync_from_last_file,
            async_learner=config.async_learner,
        )
        key = local.security.key
        self._proof = SlaveProof(key, local.nonce()) if key is not None else None
        self._opened_ms = 0
        self.untrusted = False
        """The link ended because one side does not belong to the group, or has not proved to: trying again
        soon is useless."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_read_ms = 0
        self.last_write_ms = 0
        self._slow: asyncio.Task[None] | None = None
        self._behind: list[bytes] = []
        """Bytes that arrived while slow effects were applied."""

    @property
    def following(self) -> bool:
        """Whether the link is past the handshake."""
        return self.session.transferring

    @property
    def protocol(self) -> asyncio.Protocol:
        """The link as the loop wants it."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        if not self._slave.opened(self):
            self.close("the role has changed")
            return
        self._opened_ms = self._local.running.now_ms()
        self._write(self.session.open() if self._proof is None else self._proof.open())

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
            elif not exc and not self.last_read_ms:
                self.reason += (
                    " before it said anything: if this goes on, are haSecret and haTlsEnable the same there?"
                )
        if self._slow is None:
            self._end()

    def _end(self) -> None:
        """Nothing touches the log from now on: the next link may begin."""
        self._slave.ended(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def unusually_silent(self, now_ms: int, least_ms: int, most_ms: int) -> bool:
        """Whether a master that sends heartbeats often has sent nothing for so long (`LinkSilence`)."""
        silence = self.session.silence
        return self._slow is None and silence.beats and silence.unusual(now_ms, least_ms, most_ms)

    async def settled(self) -> None:
        """Wait until no effect is under way."""
        if self._slow is not None:
            await asyncio.wait([self._slow])

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)
            self.last_write_ms = self._local.clock.now_ms()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._slow is not None:
            self._behind.append(data)
            return
        local = self._local
        self.last_read_ms = local.clock.now_ms()
        self._bytes += len(data)
        try:
            if self._proof is not None and not self._proof.done:
                answer, data = self._proof.receive(data)
                if self._proof.done:
                    self._write(answer + self.session.open())
                if not data:
                    return
            known = self.session.transferring
            effects = self.session.receive(data, local.bounds(), local.running.now_ms())
            if self.session.transferring and not known:
                self._slowly(self._begin(effects))
                return
            if any(not isinstance(effect, Append | Confirm) for effect in effects):
                self._slowly(self._apply_slowly(effects))
                return
            for effect in effects:
                self._apply(effect)
        except HAFrameError as error:
            self.untrusted = isinstance(error, ProofFailed)
            self.close(str(error))
        except (OSError, StoreError) as error:
            self.close(f"cannot append to the log: {error}")
        else:
            self._applied()

    def _apply(self, effect: Effect) -> None:
        store = self._local.store
        if isinstance(effect, Append):
            store.append_raw(effect.offset, effect.data)
        elif isinstance(effect, Confirm):
            store.confirm_offset = max(store.confirm_offset, effect.offset)

    def _slowly(self, work: Coroutine[Any, Any, None]) -> None:
        """Nothing is read until `work` is done."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._slow = asyncio.get_running_loop().create_task(work)

    async def _begin(self, effects: Sequence[Effect]) -> None:
        """The handshake's effects, once it is known whose handshake it was.

        The address of a machine that is gone may be given to a broker of another set. Without this question
        a slave would cut its log for that broker, and count as a copy of that broker's messages.
        """
        try:
            await self._local.check_master()
        except ForeignMaster as error:
            self.untrusted = True
            self.close(str(error))
        except NetError as error:
            self.close(f"the master does not say which broker it is: {error}")
        await self._apply_slowly(effects)

    async def _apply_slowly(self, effects: Sequence[Effect]) -> None:
        """Effects of which some cut the log or wait for the disk."""
        store, epochs = self._local.store, self._local.epoch_file
        loop = asyncio.get_running_loop()
        try:
            for effect in effects:
                if self._transport is None:
                    break
                if isinstance(effect, Learn):
                    await loop.run_in_executor(None, epochs.extend, effect.epochs)
                elif isinstance(effect, Truncate | StartOver):
                    await self._slave.flush_settled()
                    # The log first: an epoch without data is harmless, data without its epoch counts as the
                    # epoch before.
                    cut = effect.offset if isinstance(effect, Truncate) else store.min_offset
                    self._announce_cut(cut)
                    if isinstance(effect, Truncate):
                        store.truncate(cut)
                        await loop.run_in_executor(None, epochs.truncate_suffix, cut)
                    else:
                        store.discard()
                        await loop.run_in_executor(None, epochs.clear)
                else:
                    self._apply(effect)
        except (OSError, StoreError, ValueError) as error:
            self.close(f"cannot follow: {error}")
        finally:
            self._slow = None
            self.session.silence.excuse(self._local.running.now_ms())
        if self._transport is None:
            self._end()
            return
        self._applied()
        behind, self._behind = b"".join(self._behind), []
        self._transport.resume_reading()
        if behind:
            self.data_received(behind)

    def _announce_cut(self, offset: int) -> None:
        store = self._local.store
        if offset >= store.max_offset:
            return
        level = logging.WARNING if offset < store.confirm_offset else logging.INFO
        log.log(
            level,
            "cutting the log at %d to follow %s (%d bytes, confirm offset %d, own epochs %s)",
            offset,
            self.peer,
            store.max_offset - offset,
            store.confirm_offset,
            self._local.epochs,
        )

    def _applied(self) -> None:
        if self._transport is None:
            return
        self._slave.applied()
        self.acknowledge()

    def acknowledge(self) -> None:
        """Send the master how far this log is safe in the sense of flushDiskType."""
        session, local = self.session, self._local
        if not session.transferring or self._slow is not None:
            return
        offset = session.position
        if local.sync_flush and offset > local.store.flushed_offset:
            if not session.acked:
                return  # the first ack says where to go on, so it must be the end of the log
            offset = local.store.flushed_offset
        self._write(session.ack(offset, local.running.now_ms()))

    def tick(self, now_ms: int) -> None:
        self._rate()
        if (
            self._proof is not None
            and not self._proof.done
            and now_ms - self._opened_ms > self._local.config.ha_connect_timeout
        ):
            self.untrusted = True
            self.close("haSecret is set here, and the master does not answer to it")
        elif (
            not self.session.transferring
            and self._slow is None
            and now_ms - self._opened_ms > self._local.config.ha_connect_timeout
        ):
            # Dialling finds a line that works again sooner than TCP's doubled waits do.
            self.close("no answer to the handshake")
        elif self.session.expired(now_ms):
            self.close("silent for too long")
        elif self._slow is None:
            self._write(self.session.heartbeat(now_ms))
