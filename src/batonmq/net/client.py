"""The calling side: one shared connection per address, opened at the first call."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Container

from batonmq.common.addresses import host_and_port
from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.net.connection import SUCCESS_ONLY, Connection, Response
from batonmq.net.dispatch import Body, Dispatcher
from batonmq.net.errors import ConnectFailed, ConnectionLost
from batonmq.net.limits import Limits
from batonmq.net.live_context import LiveContext
from batonmq.net.tcp import set_tcp_timeout
from batonmq.net.turn import LoopTurn
from batonmq.protocol.frame import Command
from batonmq.protocol.registry import Header
from batonmq.protocol.signing import Credentials

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 3000
"""RocketMQ's `connectTimeoutMillis`."""
_CLOSE_S = 1.0
"""How long connections have to close."""
_DRAIN_S = 2.0
"""How much longer they have if they still write what was sent over them."""


def split_address(address: str) -> tuple[str, int]:
    """``host:port``, ``[v6]:port`` → host and port. Raises `ConnectFailed` on anything else."""
    try:
        return host_and_port(address)
    except ValueError as error:
        raise ConnectFailed(address, str(error)) from None


def _reason(error: OSError | UnicodeError) -> str:
    """The system's own words for `error`: the event loops wrap them differently."""
    if isinstance(error, UnicodeError):
        return "is not a host name"
    if (
        isinstance(error, ConnectionResetError) and not error.errno
    ):  # raised by the event loop's TLS, not by the system
        return "closed the connection in the TLS handshake; perhaps it speaks plain text only"
    if isinstance(error, socket.gaierror) or not error.errno or isinstance(error, ssl.SSLError):
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)


class RemotingClient:
    """Calls other programs. A `dispatcher` answers requests that servers send to us over our connections."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | LiveContext | None = None,
        credentials: Credentials | None = None,
        dispatcher: Dispatcher | None = None,
        limits: Limits | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        tcp_timeout_ms: int | None = None,
    ) -> None:
        """`credentials` sign all requests. `tcp_timeout_ms`: a connection whose peer acknowledges no TCP
        segment for so long is closed; None: the system's default, many minutes."""
        self._tls = tls
        self._credentials = credentials
        self._dispatcher = dispatcher if dispatcher is not None else Dispatcher()
        self._limits = limits if limits is not None else Limits()
        self._connect_timeout_ms = connect_timeout_ms
        self._tcp_timeout_ms = tcp_timeout_ms
        self._warnings = RepeatedWarnings(log)
        self._turn: LoopTurn | None = None
        self._open: dict[str, Connection] = {}
        self._all: dict[Connection, None] = {}  # ordered, so that simulated runs can be repeated
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._watched: dict[Connection, list[asyncio.Future[None]]] = {}
        self._all_closed: asyncio.Future[None] | None = None
        self._closing = False

    def serve(self, dispatcher: Dispatcher) -> None:
        """Answer the requests of servers by this dispatcher, on connections that are opened from now on."""
        self._dispatcher = dispatcher

    async def call(
        self,
        address: str,
        header: Header,
        body: Body = b"",
        *,
        timeout_ms: float = 3000,
        accept: Container[int] = SUCCESS_ONLY,
    ) -> Response:
        """Send a declared request to ``host:port`` and wait for the answer; connects first where needed.

        Raises the `MQError` of an answer whose code is not in `accept`, or `ConnectFailed`, `CallTimeout`,
        `ConnectionLost`. `timeout_ms` covers connecting and the call.
        """
        connection = self._open.get(address)
        if connection is None or connection.closed:
            connection, timeout_ms = await self._connect(address, timeout_ms)
        return await connection.call(header, body, timeout_ms, accept=accept)

    async def invoke(
        self, address: str, command: Command, *, body: Body | None = None, timeout_ms: float = 3000
    ) -> Command:
        """Send a ready command and return the answering one, whatever its code: for hot paths that encode and
        decode by themselves. Raises `ConnectFailed`, `CallTimeout`, `ConnectionLost`."""
        connection = self._open.get(address)
        if connection is None or connection.closed:
            connection, timeout_ms = await self._connect(address, timeout_ms)
        return await connection.invoke(command, timeout_ms, body=body)

    async def oneway(
        self, address: str, header: Header, body: Body = b"", *, room_within_ms: float | None = None
    ) -> None:
        """Send a request that is not answered. Raises `ConnectFailed`; a later loss goes unnoticed.

        `room_within_ms`: for callers that have no bound: wait for a peer that reads slowly, and
        raise `CallTimeout` if it does not read for so long.
        """
        connection = self._open.get(address)
        if connection is None or connection.closed:
            connection, _ = await self._connect(address, self._connect_timeout_ms)
        if room_within_ms is not None:
            await connection.room(room_within_ms)
        connection.oneway(header, body)

    def connected(self, address: str) -> Connection | None:
        """The open connection to this address, if there is one."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    async def lost(self, address: str) -> None:
        """Return once there is no open connection to this address."""
        connection = self.connected(address)
        if connection is not None:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            watching = self._watched.setdefault(connection, [])
            watching.append(gone)
            try:
                await gone
            finally:
                watching.remove(gone)

    def drop(self, address: str) -> None:
        """Close the connection to this address, or stop connecting to it. Calls in flight fail at once, with
        `ConnectionLost` or `ConnectFailed`."""
        connecting = self._connecting.pop(address, None)
        if connecting is not None:
            connecting.cancel()
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        """Close every connection. Calls in flight fail with `ConnectionLost`, later ones too.

        What was sent is written before, for a few seconds; what a peer has not taken by then is dropped.
        """
        self._closing = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        if self._turn is not None:
            await self._turn.cancel_tasks()
        for connection in list(self._all):
            connection.close()
        await self._until_closed(_CLOSE_S)
        for connection in list(self._all):
            if not connection.unsent:
                connection.abort()
        await self._until_closed(_DRAIN_S)
        for connection in list(self._all):
            if connection.unsent:
                log.warning("%s did not read %d bytes: they are dropped", connection.peer, connection.unsent)
            connection.abort()
        await asyncio.sleep(0)

    async def _until_closed(self, timeout_s: float) -> None:
        if self._all:
            if self._all_closed is None:
                self._all_closed = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_closed], timeout=timeout_s)

    async def _connect(self, address: str, timeout_ms: float) -> tuple[Connection, float]:
        """The connection, and what is left of the time. Concurrent callers share one attempt."""
        if self._closing:
            raise ConnectionLost(address, "this client is closed")
        loop = asyncio.get_running_loop()
        started = loop.time()
        task = self._connecting.get(address)
        if task is None:
            task = loop.create_task(self._dial(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._dialled(address, done))
        done, _ = await asyncio.wait([task], timeout=timeout_ms / 1000)
        if not done:
            raise ConnectFailed(address, f"no connection within {timeout_ms:.0f} ms")
        if task.cancelled():
            if self._closing:
                raise ConnectionLost(address, "this client is closed")
            raise ConnectFailed(address, "connecting was given up: the address is no longer used")
        error = task.exception()
        if error is not None:
            raise error
        return task.result(), max(1.0, timeout_ms - (loop.time() - started) * 1000)

    def _dialled(self, address: str, task: asyncio.Task[Connection]) -> None:
        if self._connecting.get(address) is task:  # after `drop` another attempt may be under way
            del self._connecting[address]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: every caller may have given up waiting for it

    async def _dial(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = split_address(address)
        if self._turn is None:
            self._turn = LoopTurn(loop)
        turn = self._turn
        connection = Connection(
            turn,
            self._dispatcher,
            self._limits,
            self._warnings,
            accepted=False,
            address=address,
            credentials=self._credentials,
            on_close=self._closed,
        )
        tls = self._tls.current() if isinstance(self._tls, LiveContext) else self._tls
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                transport, _ = await loop.create_connection(
                    lambda: connection, host, port, ssl=tls, server_hostname=host if tls else None
                )
        except TimeoutError as error:
            raise ConnectFailed(address, f"no connection within {self._connect_timeout_ms} ms") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            # UnicodeError: the host cannot be a name (IDNA).
            raise ConnectFailed(address, _reason(error)) from error
        if len(self._all) >= self._limits.max_connections:
            self._make_room()
        sock = transport.get_extra_info("socket")
        if self._tcp_timeout_ms is not None and sock is not None:
            set_tcp_timeout(sock, self._tcp_timeout_ms)
        self._open[address] = connection
        self._all[connection] = None
        return connection

    def _make_room(self) -> None:
        """Close the oldest connection that was used and is not now."""
        for connection in self._all:
            if connection.idle:
                connection.close()
                return

    def _closed(self, connection: Connection) -> None:
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
        self._all.pop(connection, None)
        for gone in self._watched.pop(connection, []):
            if not gone.done():
                gone.set_result(None)
        if self._all_closed is not None and not self._all and not self._all_closed.done():
            self._all_closed.set_result(None)
