"""The listening side: accepts connections, bounds their number, closes idle ones, hands requests to handlers.

Runs on any asyncio loop (uvloop in production, the simulator's in tests): it uses `create_server`,
`call_soon`, `call_later` and, with TLS, `start_tls`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher
from batonmq.net.interceptors import Interceptor
from batonmq.net.limits import Limits
from batonmq.net.open_files import spare_file
from batonmq.net.tls import ServerTls
from batonmq.net.tls_sniffer import TlsSniffer
from batonmq.net.turn import LoopTurn
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
"""RocketMQ's `com.rocketmq.remoting.socket.backlog`."""


def cannot_listen(what: str, error: OSError) -> OSError:
    """`error` of `create_server`, with the port in its text and the same words on every event loop."""
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return OSError(error.errno, f"cannot listen on {what}: {reason}")


async def check_free(host: str, port: int, what: str) -> None:
    """Raise `OSError` if nothing can listen at this port (`what`) now. Port 0 is always free."""
    if port:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        except OSError as error:
            raise cannot_listen(what, error) from error
        server.close()
        await server.wait_closed()


class RemotingServer:
    """One listening port. `port` is the bound one after `start`, also where 0 was asked for."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        host: str,
        port: int,
        *,
        tls: ServerTls | None = None,
        limits: Limits | None = None,
        key: str = "",
    ) -> None:
        """Several servers may share `dispatcher`, `tls` and `limits`. `key`: the configuration key that the
        port is from, for the error if it is taken."""
        self.connections: dict[Connection, None] = {}  # ordered, so that simulated runs can be repeated
        self.port = port
        self._dispatcher = dispatcher
        self._host = host
        self._key = key
        self._tls = tls
        self._limits = limits if limits is not None else Limits()
        self._turn: LoopTurn | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sniffers: set[TlsSniffer] = set()
        self._all_closed: asyncio.Future[None] | None = None
        self._stopping = False
        self._warnings = RepeatedWarnings(log)

    async def start(self) -> None:
        """Listen. Raises `OSError`, naming the port, when it is taken or the address is not ours."""
        loop = asyncio.get_running_loop()
        self._turn = LoopTurn(loop)
        try:
            self._server = await loop.create_server(
                self._accept, self._host, self.port, backlog=LISTEN_BACKLOG
            )
        except OSError as error:
            raise cannot_listen(f"port {self.port}{f' ({self._key})' if self._key else ''}", error) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._schedule_sweep()

    async def stop(self, *, drain_ms: int = 0) -> None:
        """Stop accepting, give requests in flight up to `drain_ms` to be answered, close every connection."""
        if self._server is None or self._stopping:
            return
        self._stopping = True
        loop = asyncio.get_running_loop()
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline = loop.time() + drain_ms / 1000
        # Polled: an event would cost every answer of the hot path something.
        while loop.time() < deadline and any(each.in_flight for each in self.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for sniffer in list(self._sniffers):
            sniffer.abort()
        assert self._turn is not None
        await self._turn.cancel_tasks()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self._all_closed = loop.create_future()
            await asyncio.wait([self._all_closed], timeout=1.0)
            for connection in list(self.connections):  # peers that do not read what we still had for them
                connection.abort()
        await asyncio.sleep(0)
        await self._server.wait_closed()

    def allow_frames(self, max_bytes: int) -> None:
        """Frames may be at least so long from now on, on open connections too. A limit that is higher
        stays."""
        if max_bytes <= self._limits.max_frame_bytes:
            return
        self._limits = replace(self._limits, max_frame_bytes=max_bytes)
        for connection in self.connections:
            connection.allow_frames(max_bytes)

    # -- connections ---------------------------------------------------------------------------------------

    def _accept(self) -> asyncio.BaseProtocol:
        if self._tls is None:
            return self._connection()
        idle_s = self._limits.idle_timeout_ms / 1000
        return TlsSniffer(self._tls, self._connection, self._sniffers, idle_s, self._refused, self._no_room)

    def _no_room(self, transport: asyncio.BaseTransport) -> str | None:
        """Why one more connection cannot be kept; None if it can."""
        if len(self.connections) + len(self._sniffers) >= self._limits.max_connections:
            return f"refused: {self._limits.max_connections} connections are open already"
        if not spare_file(transport):
            return "refused: this process may not open more files; raise its limit (ulimit -n, LimitNOFILE)"
        return None

    def _refused(self, peer: object, why: str) -> None:
        """A peer that TLS keeps out, and that may try again for ever."""
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._warn(name, why)

    def _warn(self, peer: str, text: str) -> None:
        self._warnings.warn(peer, text, int(asyncio.get_running_loop().time() * 1000))

    def _connection(self) -> Connection:
        assert self._turn is not None
        return Connection(
            self._turn,
            self._dispatcher,
            self._limits,
            self._warnings,
            accepted=True,
            on_open=self._opened,
            on_close=self._closed,
        )

    def _opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        if self._stopping:
            connection.abort()
            return
        if (why := self._no_room(transport)) is not None:
            self._warn(connection.peer, why)
            connection.abort()
            return
        interceptors = self._dispatcher.interceptors
        for position, interceptor in enumerate(interceptors):
            try:
                if interceptor.opened is not None:
                    interceptor.opened(connection)
            except Exception as error:
                if isinstance(error, MQError):
                    self._warn(connection.peer, f"refused: {error.remark}")
                else:
                    log.exception("%s refused: interceptor failed", connection.peer)
                connection.abort()
                self._notify_closed(connection, interceptors[:position])
                return
        self.connections[connection] = None

    def _closed(self, connection: Connection) -> None:
        if connection not in self.connections:
            return  # one that was refused
        self.connections.pop(connection, None)
        self._notify_closed(connection, self._dispatcher.interceptors)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _notify_closed(self, connection: Connection, interceptors: Sequence[Interceptor]) -> None:
        for interceptor in reversed(interceptors):
            if interceptor.closed is not None:
                try:
                    interceptor.closed(connection)
                except Exception:
                    log.exception("interceptor failed on the end of %s", connection.peer)

    # -- the sweep: idle connections and late requests -----------------------------------------------------

    def _schedule_sweep(self) -> None:
        """One timer for all connections: ten looks per time limit, every 20 ms to 5 s."""
        shortest = min(
            (ms for ms in (self._limits.idle_timeout_ms, self._limits.request_timeout_ms) if ms), default=0
        )
        if shortest:
            interval_s = min(5.0, max(0.02, shortest / 10_000))
            self._sweeper = asyncio.get_running_loop().call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        idle_s = self._limits.idle_timeout_ms / 1000
        for connection in list(self.connections):
            if self._limits.request_timeout_ms and connection.in_flight:
                connection.expire_requests(now)
            if connection.touched:
                connection.touched = False
                connection.last_active = now
            elif idle_s and now - connection.last_active >= idle_s:
                if connection.closed:
                    self._warn(
                        connection.peer, f"does not read its answers: {connection.unsent} bytes dropped"
                    )
                    connection.abort()
                    continue
                log.info("%s idle for %.0f s, closing", connection.peer, idle_s)
                connection.last_active = now  # as long again for what it has not read
                connection.close()
        self._schedule_sweep()
