"""From a request code to a function: `Request`, `Reply` and the `Dispatcher` that joins them.

A handler gets a `Request` and returns

* a `Reply`: sent at the end of this loop turn;
* an awaitable of one: sent when it is done;
* ``None`` (or an awaitable of it): the handler keeps the request and calls `Request.reply` later, at most
  once. A request that nobody answers within `Limits.request_timeout_ms` is answered with SYSTEM_BUSY.

It raises `MQError` to answer with that error's code and remark. Any other exception is a bug: logged with its
traceback, answered with SYSTEM_ERROR. Oneway requests go the same way, but nothing is ever sent back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import msgspec

from batonmq.protocol.codes import FLAG_ONEWAY
from batonmq.protocol.registry import Header

if TYPE_CHECKING:
    from batonmq.net.connection import Connection
    from batonmq.protocol.errors import MQError
    from batonmq.protocol.frame import Command

Buffer: TypeAlias = bytes | bytearray | memoryview
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
H = TypeVar("H", bound=Header)

_OPEN, _DONE, _EXPIRED = 0, 1, 2


class Request:
    """One command that came in on a connection and may still be owed an answer."""

    __slots__ = ("_state", "arrived_ns", "command", "connection", "held_bytes")

    arrived_ns: int
    """When it was read from its socket, by the observer's clock; unset where nobody observes."""

    def __init__(self, connection: Connection, command: Command) -> None:
        self.connection = connection
        self.command = command
        self.held_bytes = 0
        """Size of the body while the request is in flight; the connection's account."""
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


class Observer(Protocol):
    """Told of every request that is answered, for metrics. Part of the hot path; must not raise."""

    def now_ns(self) -> int:
        """The clock that `Request.arrived_ns` is set by; looked at once for all requests of a read."""

    def answered(self, request: Request, code: int) -> None:
        """`code` is the answer's; oneway requests come too if their handler gave an answer. A request that
        was not answered at once is still among its connection's `in_flight`."""


class Dispatcher:
    """Request code → handler. One per port; filled before the server starts."""

    def __init__(self) -> None:
        self.handlers: dict[int, RawHandler] = {}
        self.observer: Observer | None = None
        """Set before the server starts, if at all."""

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
                # Some clients write bare numbers; and whoever wrote nonsense is told what is wrong with it.
                header = from_ext(command.ext)
            return handler(request, header)

        self.on_code(header_class.code, decode_and_handle)

    def on_code(self, code: int, handler: RawHandler) -> None:
        """Bind a handler that reads header and body by itself (the hot path, or a request without header)."""
        if int(code) in self.handlers:
            raise ValueError(f"request code {int(code)} already has a handler")
        self.handlers[int(code)] = handler
