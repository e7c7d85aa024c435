"""The master's end of a replication link, as far as both kinds of replication have it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from batonmq.ha.flow import FlowControl, Window
from batonmq.ha.link import Link
from batonmq.ha.proof import MasterProof
from batonmq.ha.read_ahead import ReadAhead

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.ha.config import HAConfig
    from batonmq.ha.port import ReplicatedLog
    from batonmq.ha.security import LinkSecurity

TURN_BYTES: Final = 256 * 1024
"""What one loop turn sends to a slave that catches up. Producers wait that long for their answers: with 1 MiB
their p99 is half as long again, with less the slave catches up no slower."""
MAP_REMAINS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The file cannot be opened, which says nothing about the disk: its map can be read."""


class Local(Protocol):
    """The part of a `LocalReplica` that sending needs."""

    @property
    def store(self) -> ReplicatedLog: ...
    @property
    def config(self) -> HAConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def security(self) -> LinkSecurity: ...
    @property
    def nonce(self) -> Callable[[], bytes]: ...


class SendingLink(Link):
    """One slave's connection. With a shared secret the slave gets nothing, and nothing it says is believed,
    before it has proved to know the secret."""

    def __init__(self, local: Local) -> None:
        config, clock = local.config, local.clock
        super().__init__(config.max_lag_ms)
        self._store, self._config = local.store, config
        self._paused = False
        self._resume: asyncio.Handle | None = None
        """Set while `pump` is to go on by itself, later."""
        self._ahead: ReadAhead | None = None
        """While the slave is far behind. It refers to this link, so a link that ends lets go of it."""
        self._window = Window()
        self._window_full = False
        """The next ack pumps."""
        key = local.security.key
        self._proof = MasterProof(key, local.nonce()) if key is not None else None
        self._flow = (
            FlowControl(config.max_ha_transfer_byte_in_second, clock.monotonic_ms())
            if config.ha_flow_control_enable
            else None
        )

    # -- what the two kinds add

    def pump(self) -> None:
        """Send as much as the socket takes, and flow control allows; a long way in several loop turns."""
        raise NotImplementedError

    def _admitted(self) -> bool:
        """The link is connected. False: it was closed again."""
        raise NotImplementedError

    def _gone(self) -> None:
        """The link is closed."""
        raise NotImplementedError

    def _warn(self, text: str) -> None:
        """Log what no replica does."""
        raise NotImplementedError

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        if not self._admitted():
            return
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=self._config.ha_send_buffer_size)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self.reason = str(exc) if exc else "closed by the slave"
            self._transport = None
            if self._proof is not None and self._proof.challenged and not self._proof.done:
                self._warn("went away instead of proving the secret: is haSecret the same on both sides?")
        if self._resume is not None:
            self._resume.cancel()
        self._ahead = None
        self._gone()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def _proved(self, data: bytes) -> bytes:
        """What a slave said after its proof; empty before that. Raises `HAFrameError`."""
        proof = self._proof
        if proof is None or proof.done or self._transport is None:
            return data
        answer, data = proof.receive(data)
        if answer:
            self._transport.write(answer)
        return data

    # -- what is sent when

    def _go_on(self) -> None:
        """The slave has acknowledged more: send on, if that was waited for."""
        if self._window_full:
            self._window_full = False
            self.pump()

    def _read_ahead(self, ahead: ReadAhead, offset: int, size: int) -> memoryview | None:
        """What a thread read; None if it has not yet, or the disk has failed and the link is closed."""
        try:
            return ahead.take(offset, size)
        except OSError as error:
            self._warn(f"the part of the log that comes next for it cannot be read: {error}")
            if error.errno in MAP_REMAINS:
                return self._store.read(offset, size)
            # Reading the map instead would be a SIGBUS. The slave asks again.
            self.close("the log cannot be read")
            return None

    def _pump_soon(self) -> None:
        self._resume = asyncio.get_running_loop().call_soon(self._resumed)

    def _pump_later(self, wait_ms: int) -> None:
        self._resume = asyncio.get_running_loop().call_later(wait_ms / 1000, self._resumed)

    def _resumed(self) -> None:
        self._resume = None
        self.pump()
