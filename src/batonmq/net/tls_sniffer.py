"""One port for TLS and plain text: the first byte of a connection tells which it is."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from batonmq.net.tls import ServerTls

TLS_HANDSHAKE_RECORD: Final = 0x16
"""First byte of a TLS client hello. A frame that began with it would be 368 MB long, so it is none."""


class TlsSniffer(asyncio.Protocol):
    """Looks at the first byte of a new connection, then hands the transport to the real protocol.

    Owned by the server's set of sniffers from `connection_made` until the hand-over or the end.
    """

    def __init__(
        self,
        tls: ServerTls,
        factory: Callable[[], asyncio.Protocol],
        sniffers: set[TlsSniffer],
        timeout_s: float,
        refused: Callable[[object, str], None],
        no_room: Callable[[asyncio.BaseTransport], str | None] = lambda transport: None,
    ) -> None:
        """`refused` is called with each peer that is kept out, and why. `no_room`: why one more connection
        cannot be kept; None if it can."""
        self._tls = tls
        self._factory = factory
        self._sniffers = sniffers
        self._timeout_s = timeout_s
        self._refused = refused
        self._no_room = no_room
        self._transport: asyncio.Transport | None = None
        self._peer: object = "?"
        self._timer: asyncio.TimerHandle | None = None
        self._upgrade_task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._peer = transport.get_extra_info("peername")
        if (why := self._no_room(transport)) is not None:
            self._refuse(why)
            self._transport.abort()
            return
        self._sniffers.add(self)
        if self._timeout_s:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._upgrade_task is not None:  # decrypted data that came along with the end of the handshake
            self._early.append(data)
        elif data[0] == TLS_HANDSHAKE_RECORD:
            # start_tls pauses too, but not before its first step: until then the rest of a hello that came in
            # pieces would be taken for decrypted data.
            self._transport.pause_reading()
            self._upgrade_task = asyncio.ensure_future(self._upgrade(data))
        elif self._tls.enforcing:
            self._refuse("speaks plain text, and tls.server.mode is enforcing; closing")
            self._transport.close()
        else:
            self._hand_over(self._transport, data)

    def abort(self) -> None:
        """The time to say something is over, or the server stops."""
        if self._upgrade_task is not None:
            self._upgrade_task.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        self._refused(self._peer, why)

    def _done(self) -> None:
        self._sniffers.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        self._done()
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data and not transport.is_closing():  # else it was refused, and so is what it asks for
            protocol.data_received(data)

    async def _upgrade(self, hello: bytes) -> None:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        upgrade = asyncio.ensure_future(
            loop.start_tls(self._transport, self, self._tls.contexts.current(), server_side=True)
        )
        # The hello has been read and must reach the TLS protocol that start_tls puts in place: after that
        # protocol's connection_made, before anything else is read. start_tls queues connection_made and
        # resume_reading in its first step; a callback queued just after that step runs right behind them,
        # with no polling of sockets in between (asyncio and uvloop alike).
        await asyncio.sleep(0)
        loop.call_soon(self._feed, hello)
        try:
            upgraded = await upgrade
        except (OSError, ssl.SSLError) as error:
            self._refuse(f"failed the TLS handshake: {str(error) or type(error).__name__}")
            self._done()
            self._transport = None
            return
        except asyncio.CancelledError:
            self._done()  # asyncio's TLS does not tell its protocol about the end of a handshake
            raise
        finally:
            # The error's traceback holds this frame, and `upgrade` the error: the circle would keep the
            # buffers of each failed handshake (300 KB) until the collector comes by, for which a flood of
            # them does not wait.
            del upgrade
        if upgraded is not None and not upgraded.is_closing():
            self._hand_over(upgraded, b"".join(self._early))

    def _feed(self, hello: bytes) -> None:
        assert self._transport is not None
        protocol = self._transport.get_protocol()
        if isinstance(protocol, TlsSniffer):  # start_tls refused this transport; its error is reported above
            return
        rest = memoryview(hello)
        while rest:
            buffer = protocol.get_buffer(len(rest))  # type: ignore[attr-defined]  # a BufferedProtocol
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            protocol.buffer_updated(size)  # type: ignore[attr-defined]
            rest = rest[size:]
