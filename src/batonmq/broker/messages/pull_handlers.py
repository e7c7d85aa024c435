"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from batonmq.broker.messages.puller import PullAnswer
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.headers.broker.pull import LitePullMessage, PullMessage

if TYPE_CHECKING:
    from batonmq.broker.messages.puller import Puller
    from batonmq.net.connection import Connection
    from batonmq.protocol.errors import MQError


class _FramePull:
    """A pull from a remoting frame (`PullCall`)."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request
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
        self._request.reply(_reply(answer))

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
        answer = self._puller.pull(header, _FramePull(request))
        if answer is None:
            return None
        return _reply(answer) if isinstance(answer, PullAnswer) else _later(answer)


async def _later(answer: Awaitable[PullAnswer]) -> Reply:
    return _reply(await answer)


def _reply(answer: PullAnswer) -> Reply:
    return Reply(answer.header, body=answer.buffers or b"", code=answer.code, remark=answer.remark)
