"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from batonmq.broker.messages.puller import PullAnswer
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers.broker.pull import LitePullMessage, PullMessage

if TYPE_CHECKING:
    from batonmq.broker.messages.puller import Puller
    from batonmq.net.connection import Connection
    from batonmq.protocol.errors import MQError


class _FramePull:
    """A pull from a remoting frame (`PullCall`)."""

    __slots__ = ("_header", "_request")

    def __init__(self, request: Request, header: PullMessage) -> None:
        self._request = request
        self._header = header
        request.command.body = b""  # means nothing, and it may be held for long

    @property
    def peer(self) -> str:
        return self._request.connection.peer

    @property
    def client(self) -> Connection:
        return self._request.connection

    @property
    def finished(self) -> bool:
        return self._request.answered or self._request.connection.closed

    def answer(self, answer: PullAnswer) -> None:
        self._request.reply(_reply_later(answer, self._request, self._header))

    def fail(self, error: MQError) -> None:
        self._request.fail(error)


class PullHandlers:
    """Converts between frames and the calls of `Puller`."""

    def __init__(self, puller: Puller) -> None:
        self._puller = puller

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(PullMessage, self.on_pull)
        dispatcher.on(LitePullMessage, self.on_pull)

    def on_pull(self, request: Request, header: PullMessage) -> Reply | Awaitable[Reply] | None:
        if request.oneway:
            return None
        answer = self._puller.pull(header, _FramePull(request, header))
        if answer is None:
            return None
        return _reply(answer) if isinstance(answer, PullAnswer) else _later(answer, request, header)


async def _later(answer: Awaitable[PullAnswer], request: Request, header: PullMessage) -> Reply:
    return _reply_later(await answer, request, header)


def _reply_later(answer: PullAnswer, request: Request, header: PullMessage) -> Reply:
    """The answer to a pull that waited. Thousands of one connection may be answered at once: where it takes
    no more, the rest bring no messages and are pulled again. With TLS the messages would all be copied."""
    if answer.buffers and request.connection.congested:
        answer.header.next_begin_offset = header.queue_offset
        code = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
        return Reply(answer.header, code=code, remark="what was answered before is not read yet")
    return _reply(answer)


def _reply(answer: PullAnswer) -> Reply:
    return Reply(answer.header, body=answer.buffers or b"", code=answer.code, remark=answer.remark)
