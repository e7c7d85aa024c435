"""One connection, whichever side opened it: frames in, requests dispatched, answers and calls out.

Everything that arrives in one read is parsed and dispatched in one pass. What is to be written is collected
and leaves once per loop turn (`turn.py`). Memory stays bounded: a connection with too many unanswered
requests (`Limits.max_in_flight`, `max_in_flight_bytes`) or unread answers (`write_buffer_bytes`) is not read
until it has caught up. Requests already parsed wait in its backlog, at most what two reads brought.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Final, cast

import msgspec

from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.net.calls import Calls
from batonmq.net.dispatch import Body, Dispatcher, Reply, Request
from batonmq.net.errors import CallTimeout, ConnectionLost
from batonmq.net.limits import Limits
from batonmq.net.tcp import Retransmits
from batonmq.net.tls import TlsPeer, tls_peer
from batonmq.net.turn import LoopTurn
from batonmq.protocol.buffers import Buffer
from batonmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from batonmq.protocol.errors import FrameError, MQError, error_for
from batonmq.protocol.frame import Command, FrameReader, encode_head
from batonmq.protocol.registry import Header
from batonmq.protocol.signing import Credentials

log = logging.getLogger(__name__)

SUCCESS_ONLY: Container[int] = frozenset({int(ResponseCode.SUCCESS)})
_SILENT_CALL_MS: Final = 1000
"""A call with at least this timeout during which not one byte came closes its connection: the peer may be
gone (power, partition), and TCP takes minutes to notice."""
_JOIN_BELOW: Final = 64 * 1024
"""Output of a turn up to this size is joined into one buffer: measured cheaper than a gathered write of many
small frames. Larger output is large bodies, which are not to be copied."""
_LONG_S: Final = 0.0005
"""When the requests of one read have taken so long, the answers leave and the rest waits for the next turn of
the loop: the peer can go on meanwhile, and other connections have their turn."""


class Response(msgspec.Struct, gc=False):
    """What the peer answered. `header` is of the type the request declares, None if it declares none."""

    header: Header | None
    body: Buffer
    code: int
    remark: str | None
    version: int = 0
    """The peer's release (`protocol.versions`)."""


class Connection(asyncio.Protocol):
    """A connection to a peer. Handlers and callers use `peer`, `closed`, `call`, `oneway`, `close`."""

    def __init__(
        self,
        turn: LoopTurn,
        dispatcher: Dispatcher,
        limits: Limits,
        warnings: RepeatedWarnings,
        *,
        accepted: bool,
        address: str = "?",
        credentials: Credentials | None = None,
        on_open: Callable[[Connection, asyncio.Transport], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        """`warnings` are the owner's, for all its connections: a bad peer closes one and opens the next.
        `credentials` sign every request that goes out; None: they are not signed."""
        loop = asyncio.get_running_loop()
        self.peer = address
        """``ip:port`` of the other side (the dialled address on a connection we opened)."""
        self.tls: TlsPeer | None = None
        """What TLS says about the other side; None: plain text."""
        self.closed = False
        self._ended_by_peer = False
        self.in_flight: dict[Request, float] = {}
        """Unanswered requests → when they came in (loop time), oldest first."""
        self.last_active = loop.time()
        """Loop time of the last read or write, as fine as the owner's sweep."""
        self.touched = True
        """Read or written since the last sweep."""
        self._loop = loop
        self._turn = turn
        self._dispatcher = dispatcher
        self._limits = limits
        self._warnings = warnings
        self._accepted = accepted
        self._credentials = credentials
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader(limits.max_frame_bytes)
        self._calls = Calls(loop, address)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_size = 0
        self._backlog: deque[Command] = deque()
        self._write_paused = False
        self._stalled = False
        self._resuming = False
        self._writable: asyncio.Future[None] | None = None
        self._reads = 0
        self._held_bytes = 0
        self._retransmits: Retransmits | None = None

    def __str__(self) -> str:
        return self.peer

    def allow_frames(self, max_bytes: int) -> None:
        """The peer's frames may be so long from now on (`Limits.max_frame_bytes`)."""
        self._reader.allow(max_bytes)

    # -- the transport's side ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        if self._accepted:
            peer = transport.get_extra_info("peername")
            self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "?")
            self._calls = Calls(self._loop, self.peer)
        self.tls = tls_peer(transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        if self._on_open is not None:
            self._on_open(self, self._transport)

    def data_received(self, data: bytes) -> None:
        self.touched = True
        self._reads += 1
        try:
            commands = self._reader.feed(data)
        except FrameError as error:
            self.warn(f"sent a bad frame, closing: {error}")
            self.close()
            return
        if self._stalled:  # a read that was under way when reading was paused
            self._backlog.extend(commands)
        elif commands:
            self._dispatch(iter(commands))

    def eof_received(self) -> bool:
        self.flush()  # the transport closes before the end of this turn
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._accepted:  # the opener must go on reading, or both sides could wait for each other
            self._stall()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended_by_peer = not self.closed and (exc is None or isinstance(exc, ConnectionError))
        self.closed = True
        self._out.clear()
        self._backlog.clear()
        self.in_flight.clear()
        self._held_bytes = 0
        reason = f"connection lost ({exc})" if exc is not None else "connection closed"
        self._calls.fail_all(ConnectionLost(self.peer, reason, by_peer=self._ended_by_peer))
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        if self._on_close is not None:
            self._on_close(self)

    # -- requests in, answers out --------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """The peer reads slower than we write; large answers had better wait."""
        return self._write_paused or self._out_size >= self._limits.write_buffer_bytes

    def retransmitting(self) -> bool | None:
        """Whether TCP has repeated a segment and waits; what is sent now arrives after that one. None: nobody
        knows."""
        if self._retransmits is None and self._transport is not None:
            self._retransmits = Retransmits(self._transport)
        return None if self._retransmits is None else self._retransmits.under_way(self._loop.time())

    def _dispatch(self, commands: Iterable[Command]) -> None:
        dispatcher = self._dispatcher
        handlers, not_supported = dispatcher.handlers, dispatcher.not_supported
        in_flight = self.in_flight
        max_in_flight = self._limits.max_in_flight
        max_held_bytes = self._limits.max_in_flight_bytes
        max_out = self._limits.write_buffer_bytes
        arrived = 0.0
        arrived_ns = dispatcher.timer_ns()
        began = self._loop.time()
        long = False
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                if not self._calls.complete(command):
                    log.debug("%s answered opaque=%d, which nobody waits for", self.peer, command.opaque)
                continue
            request = Request(self, command)
            request.arrived_ns = arrived_ns
            try:
                outcome = handlers.get(command.code, not_supported)(request)
            except MQError as error:
                request.fail(error)
            except Exception as error:
                self._bug(request, error)
            else:
                if outcome.__class__ is Reply:
                    request.reply(outcome)
                if request._state:
                    long = self._loop.time() - began > _LONG_S
                else:
                    if not arrived:
                        arrived = self._loop.time()
                    if outcome is not None:
                        self._hold(request, outcome, arrived)
                    elif not command.flag & FLAG_ONEWAY:  # as `_hold`: every send comes here
                        in_flight[request] = arrived
                        request.held_bytes = command.size
                        self._held_bytes += request.held_bytes
                        if not command.body:  # a held poll; a send is stored and answered soon
                            command.detach()
            if self._out_size >= max_out or long:
                self.flush()
            if len(in_flight) >= max_in_flight or self._held_bytes >= max_held_bytes:
                self._stall()
            if self._stalled or long:
                self._backlog.extend(commands)
                break
        if long and self._backlog:
            self._stall()
            self._relax()

    def _hold(self, request: Request, outcome: object, arrived: float) -> None:
        """The answer comes later, from a task."""
        if not isinstance(outcome, Awaitable):
            self._bug(request, TypeError(f"handler returned {type(outcome).__name__}"))
            return
        self.in_flight[request] = arrived
        request.held_bytes = request.command.size
        self._held_bytes += request.held_bytes
        request.command.detach()
        task = asyncio.ensure_future(outcome)
        self._turn.tasks.add(task)
        task.add_done_callback(lambda done: self._finish(request, done))

    def _release(self, request: Request) -> None:
        """A request is no longer in flight."""
        if self.in_flight.pop(request, None) is not None:
            self._held_bytes -= request.held_bytes
            if self._stalled:
                self._relax()

    def _finish(self, request: Request, task: asyncio.Future[Reply | None]) -> None:
        self._turn.tasks.discard(task)
        if task.cancelled():
            request.expire(Reply(code=int(ResponseCode.SYSTEM_BUSY), remark="the server is stopping"))
            return
        error = task.exception()
        if error is None:
            reply = task.result()
            if reply is not None:
                request.reply(reply)
            elif request.oneway:
                self._release(request)
        elif request.answered:
            log.error("%s code=%d failed after its answer", self.peer, request.command.code, exc_info=error)
        elif isinstance(error, MQError):
            request.fail(error)
        else:
            self._bug(request, error)

    def warn(self, text: str) -> None:
        """Log what this peer did wrong, once in a while."""
        self._warnings.warn(self.peer, text, int(self._loop.time() * 1000))

    def _bug(self, request: Request, error: BaseException) -> None:
        log.error("handler of code=%d failed", request.command.code, exc_info=error)
        if not request.answered:
            remark = f"{type(error).__name__}: {error}"
            request.reply(Reply(code=int(ResponseCode.SYSTEM_ERROR), remark=remark))

    def send_reply(self, request: Request, reply: Reply) -> None:
        """Collect the frame that answers a request (called by `Request`, which sees to "at most once")."""
        answered = self._dispatcher.answered
        if answered is not None:
            try:
                answered(request, reply.code)
            except Exception:
                self.interceptor_failed(request)
        if self.in_flight:
            self._release(request)
        command = request.command
        if command.flag & FLAG_ONEWAY or self.closed:
            return
        header = reply.header
        body = reply.body
        self._write(
            encode_head(
                reply.code,
                command.opaque,
                FLAG_RESPONSE,
                binary=command.binary,
                body_length=len(body) if body.__class__ is bytes else _length(body),
                ext=reply.ext if header is None else header.to_ext(),
                remark=reply.remark,
            ),
            body,
        )

    def send_frame(self, request: Request, frame: bytes, code: int) -> None:
        """Collect a ready frame that answers a request (called by `Request`)."""
        answered = self._dispatcher.answered
        if answered is not None:
            try:
                answered(request, code)
            except Exception:
                self.interceptor_failed(request)
        if self.in_flight:
            self._release(request)
        if not request.command.flag & FLAG_ONEWAY and not self.closed:
            if not self._out:
                self._turn.has_output(self)
            self._out.append(frame)
            self._out_size += len(frame)

    def interceptor_failed(self, request: Request) -> None:
        """Log the exception under way; the answer goes out all the same."""
        log.exception("interceptor failed on the answer to code=%d", request.command.code)

    def expire_requests(self, now: float) -> None:
        """Answer what has waited longer than `Limits.request_timeout_ms`; called by the owner's sweep."""
        limit_s = self._limits.request_timeout_ms / 1000
        late = []
        for request, arrived in self.in_flight.items():
            if now - arrived < limit_s:
                break
            late.append(request)
        for request in late:
            log.warning("%s code=%d unanswered after %.0f s", self.peer, request.command.code, limit_s)
            request.expire(
                Reply(
                    code=int(ResponseCode.SYSTEM_BUSY), remark=f"no answer within {limit_s:.0f} s, try again"
                )
            )

    def _stall(self) -> None:
        if not self._stalled and not self.closed:
            self._stalled = True
            assert self._transport is not None
            self._transport.pause_reading()

    def _relax(self) -> None:
        """Schedule `_resume` once reading may go on; not at once, because a handler may be on the stack."""
        if (
            self._stalled
            and not self._resuming
            and not self._write_paused
            and len(self.in_flight) * 2 <= self._limits.max_in_flight
            and self._held_bytes * 2 <= self._limits.max_in_flight_bytes
        ):
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        assert self._transport is not None
        if self._write_paused or self._transport.is_closing():
            return
        self._stalled = False
        backlog, self._backlog = self._backlog, deque()
        if backlog:
            self._dispatch(iter(backlog))
        if not self._stalled and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- calls out -----------------------------------------------------------------------------------------

    async def call(
        self,
        header: Header,
        body: Body = b"",
        timeout_ms: float = 3000,
        *,
        accept: Container[int] = SUCCESS_ONLY,
    ) -> Response:
        """Send a declared request and wait for its answer.

        An answer whose code is not in `accept` raises the `MQError` of that code. `accept` lists codes whose
        answer the caller wants to read itself (a pull's PULL_NOT_FOUND carries the next offset).
        Raises `CallTimeout`, `ConnectionLost`.
        """
        answer = await self.invoke(Command(header.code, header.to_ext()), timeout_ms, body=body)
        return read_response(type(header), answer, accept)

    async def invoke(self, command: Command, timeout_ms: float, *, body: Body | None = None) -> Command:
        """Send a ready command (its opaque is set here); returns the answering command whatever its code."""
        if self._write_paused:
            await self._until_writable(timeout_ms)
        if self.closed:
            raise ConnectionLost(self.peer, "connection closed", by_peer=self._ended_by_peer)
        calls = self._calls
        reads = self._reads
        opaque = command.opaque = calls.next_opaque()
        future = calls.expect(opaque, timeout_ms / 1000)
        self._write_command(command, command.body if body is None else body)
        try:
            return await future
        except asyncio.CancelledError:
            calls.forget(opaque)
            raise
        except CallTimeout:
            silent = reads == self._reads and not self._accepted
            if silent and timeout_ms >= _SILENT_CALL_MS and not self.closed:
                log.warning("%s sent nothing for %.0f ms, closing the connection", self.peer, timeout_ms)
                self.abort()
            raise

    def oneway(self, header: Header, body: Body = b"") -> None:
        """Send a declared request that is not answered. On a closed connection nothing happens."""
        if self.closed:
            return
        command = Command(header.code, header.to_ext(), flag=FLAG_ONEWAY, opaque=self._calls.next_opaque())
        self._write_command(command, body)

    async def room(self, timeout_ms: float) -> None:
        """Return when one more `oneway` finds room: a sender that goes on and on lets the loop do other work,
        and waits for a peer that reads slowly. Raises `CallTimeout`, `ConnectionLost`."""
        if self._out_size >= _JOIN_BELOW:
            await asyncio.sleep(0)  # the turn ends, and what it collected leaves
        if self._write_paused:
            await self._until_writable(timeout_ms)
        if self.closed:
            raise ConnectionLost(self.peer, "connection closed", by_peer=self._ended_by_peer)

    async def _until_writable(self, timeout_ms: float) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()
        done, _ = await asyncio.wait([self._writable], timeout=timeout_ms / 1000)
        if not done:
            raise CallTimeout(self.peer, "the peer does not read what we send")

    # -- output --------------------------------------------------------------------------------------------

    def _write_command(self, command: Command, body: Body) -> None:
        ext = command.ext
        if self._credentials is not None:
            ext = self._credentials.sign(ext, body)
        self._write(
            encode_head(
                command.code,
                command.opaque,
                command.flag,
                binary=command.binary,
                body_length=_length(body),
                ext=ext,
                remark=command.remark,
                language=command.language,
                version=command.version,
            ),
            body,
        )

    def _write(self, head: bytes, body: Body) -> None:
        out = self._out
        if not out:
            self._turn.has_output(self)
        out.append(head)
        self._out_size += len(head)
        if not body:
            return
        if isinstance(body, (bytes, memoryview, bytearray)):
            out.append(body)
            self._out_size += len(body)
        else:
            out.extend(body)
            self._out_size += _length(body)

    def flush(self) -> None:
        """Hand what was collected to the transport. Called at the end of each loop turn."""
        out = self._out
        if not out:
            return
        size, self._out, self._out_size = self._out_size, [], 0
        transport = self._transport
        if self.closed or transport is None or transport.is_closing():
            return
        self.touched = True
        if len(out) == 1:
            transport.write(out[0])
        elif size < _JOIN_BELOW:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    @property
    def idle(self) -> bool:
        """Whether it is open, something has come over it, and no request of either side waits for its
        answer."""
        return not self.closed and self._reads > 0 and not self._calls and not self.in_flight

    @property
    def unsent(self) -> int:
        """Bytes to write that the system has not taken yet."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_size + waiting

    def close(self) -> None:
        """Write what is collected, then close. Calls in flight fail with `ConnectionLost`."""
        if self._transport is not None and not self.closed:
            self.flush()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not written is lost."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


def _length(body: Body) -> int:
    if isinstance(body, (bytes, memoryview, bytearray)):
        return len(body)
    return sum(map(len, body))


def read_response(header_class: type[Header], answer: Command, accept: Container[int]) -> Response:
    """An answer as the caller of a declared request sees it; raises `MQError` for a code not accepted."""
    if answer.code not in accept:
        raise error_for(answer.code, answer.remark, answer.ext)
    response_class = header_class.response
    header = response_class.from_ext(answer.ext) if response_class is not None else None
    return Response(header, answer.body, answer.code, answer.remark, answer.version)
