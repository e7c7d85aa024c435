"""From a request code to a function: `Request`, `Reply` and the `Dispatcher` that joins them.

A handler gets a `Request` and returns

* a `Reply`: sent at the end of this loop turn;
* an awaitable of one: sent when it is done;
* ``None`` (or an awaitable of it): the handler keeps the request and calls `Request.reply` later, at most
  once. A request that nobody answers within `Limits.request_timeout_ms` is answered with SYSTEM_BUSY.

It raises `MQError` to answer with that error's code and remark. Any other exception is a bug: logged with its
traceback, answered with SYSTEM_ERROR. Oneway requests go the same way, but nothing is ever sent back.

What concerns all requests, whichever handler they are for, is an interceptor (`interceptors.py`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from batonmq.net.interceptors import Interceptor, each_answered, guard
from batonmq.protocol.buffers import Buffer
from batonmq.protocol.codes import FLAG_ONEWAY, ResponseCode
from batonmq.protocol.frame import FrameReader
from batonmq.protocol.registry import Header

if TYPE_CHECKING:
    from batonmq.net.connection import Connection
    from batonmq.protocol.errors import MQError
    from batonmq.protocol.frame import Command

Body: TypeAlias = Buffer | Sequence[Buffer]


class Reply(msgspec.Struct, gc=False):
    """An answer. `body` may be a sequence of buffers; they are written without being joined.

    `ext` are the header's fields in their wire form, used when there is no typed `header`.
    """

    header: Header | None = None
    body: Body = b""
    code: int = 0
    remark: str | None = None
    ext: Mapping[str, str] | None = None


Outcome: TypeAlias = Reply | Awaitable[Reply | None] | None
RawHandler: TypeAlias = "Callable[[Request], Outcome]"
Around: TypeAlias = "Callable[[Request, RawHandler], Outcome]"
"""Serves a request, with the handler that it stands in front of."""
H = TypeVar("H", bound=Header)

_OPEN, _DONE, _EXPIRED = 0, 1, 2


class Request:
    """One command that came in on a connection and may still be owed an answer."""

    __slots__ = ("_state", "arrived_ns", "command", "connection", "held_bytes", "reached")

    arrived_ns: int
    """When it was read from its socket, by `Dispatcher.timer_ns`."""
    reached: int
    """How many interceptors it passed, if it did not pass them all at once; else unset."""

    def __init__(self, connection: Connection, command: Command) -> None:
        self.connection = connection
        self.command = command
        self.held_bytes = 0
        """Its size (`Command.size`) while it is in flight; the connection's account."""
        self._state = _OPEN

    @property
    def oneway(self) -> bool:
        """Nobody waits for an answer."""
        return self.command.flag & FLAG_ONEWAY != 0

    @property
    def answered(self) -> bool:
        """An answer was given, or the request's time was up."""
        return self._state != _OPEN

    def reply(self, reply: Reply) -> None:
        """Answer; goes out at the end of this loop turn. A second answer is a `RuntimeError`.

        After the deadline, or when the connection is gone, the answer is dropped: nobody can receive it.
        """
        if self._state:
            if self._state == _DONE:
                raise RuntimeError(f"request code={self.command.code} was answered twice")
            return
        self._state = _DONE
        self.connection.send_reply(self, reply)

    def reply_frame(self, frame: bytes, code: int) -> None:
        """`reply` with a whole frame, carrying `code`, that the handler encoded itself, as the broker does
        for sends."""
        if self._state:
            if self._state == _DONE:
                raise RuntimeError(f"request code={self.command.code} was answered twice")
            return
        self._state = _DONE
        self.connection.send_frame(self, frame, code)

    def fail(self, error: MQError) -> None:
        """Answer with an error's code, remark and fields."""
        self.reply(Reply(code=int(error.code), remark=error.remark, ext=error.ext or None))

    def expire(self, reply: Reply) -> None:
        """Answer on behalf of a handler that took too long; what it says later is dropped."""
        if self._state == _OPEN:
            self._state = _EXPIRED
            self.connection.send_reply(self, reply)


class InnerRequest(Request):
    """A request that is handled on behalf of another one: its answer goes to a function."""

    __slots__ = ("_outer", "_take")

    def __init__(self, outer: Request, command: Command, take: Callable[[Reply], None]) -> None:
        """`take` gets an answer that the handler gives after it returned."""
        super().__init__(outer.connection, command)
        self.arrived_ns = outer.arrived_ns
        self._outer = outer
        self._take = take

    @property
    def answered(self) -> bool:
        return self._state != _OPEN or self._outer.answered

    def reply(self, reply: Reply) -> None:
        if self._state:
            raise RuntimeError(f"request code={self.command.code} was answered twice")
        self._state = _DONE
        if not self._outer.answered:
            self._take(reply)

    def reply_frame(self, frame: bytes, code: int) -> None:
        answer = FrameReader(len(frame)).feed(frame)[0]
        self.reply(Reply(body=answer.body, code=answer.code, remark=answer.remark, ext=answer.ext))


def _not_supported(request: Request) -> Reply:
    code = request.command.code
    request.connection.warn(f"request type {code} not supported")
    return Reply(
        code=int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=f" request type {code} not supported"
    )


class Dispatcher:
    """Request code → handler, behind interceptors. For one port or several; filled before requests come."""

    def __init__(self, *, timer_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """`timer_ns`: the clock of `Request.arrived_ns`, read once for all requests of one read."""
        self.timer_ns = timer_ns
        self.interceptors: list[Interceptor] = []
        self.handlers: dict[int, RawHandler] = {}
        """As called: behind the interceptors."""
        self.not_supported: RawHandler = _not_supported
        """As `handlers`, for the codes that are not among them."""
        self.answered: Callable[[Request, int], None] | None = None
        """What the interceptors want to be called with each answer."""
        self._bound: dict[int, RawHandler] = {}

    def intercept(self, interceptor: Interceptor) -> None:
        """Add an interceptor inside those that are there already."""
        self.interceptors.append(interceptor)
        self.answered = each_answered(self.interceptors)
        self.not_supported = guard(_not_supported, self.interceptors)
        for code, handler in self._bound.items():
            self.handlers[code] = guard(handler, self.interceptors)

    def on(self, header_class: type[H], handler: Callable[[Request, H], Outcome]) -> None:
        """Bind a handler to a declared request; it is given the decoded header.

        A header that does not decode is answered with the error `Header.from_ext` raises.
        """
        from_ext = header_class.from_ext
        from_json = msgspec.json.Decoder(header_class, strict=False).decode

        def decode_and_handle(request: Request) -> Outcome:
            command = request.command
            fields = command.json_ext
            if fields is None:
                return handler(request, from_ext(command.ext))
            try:
                header = from_json(fields)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                # Some clients write bare numbers; for all else the error names the field.
                header = from_ext(command.ext)
            return handler(request, header)

        self.on_code(header_class.code, decode_and_handle)

    def on_code(self, code: int, handler: RawHandler) -> None:
        """Bind a handler that reads header and body by itself (the hot path, or a request without header)."""
        code = int(code)
        if code in self._bound:
            raise ValueError(f"request code {code} already has a handler")
        self._bound[code] = handler
        self.handlers[code] = guard(handler, self.interceptors)

    def wrap(self, code: int, around: Around) -> RawHandler:
        """Put a function in front of a bound handler, behind the interceptors; returns that handler. Raises
        KeyError for a code without one."""
        code = int(code)
        inner = self._bound[code]
        self._bound[code] = lambda request: around(request, inner)
        self.handlers[code] = guard(self._bound[code], self.interceptors)
        return inner
