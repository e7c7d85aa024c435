"""Who waits for the end of a half message: a request, or a request about many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from batonmq.net.dispatch import Reply

if TYPE_CHECKING:
    from batonmq.net.dispatch import Request
    from batonmq.protocol.errors import MQError


class Asker(Protocol):
    """Gets one of the two calls, once."""

    def reply(self, reply: Reply) -> None:
        """The half message is ended."""

    def fail(self, error: MQError) -> None:
        """It is not."""


class SharedRequest:
    """A request that is answered once all its half messages are ended, or could not be."""

    def __init__(self, request: Request, count: int) -> None:
        self._request = request
        self._left = count
        self._error: MQError | None = None

    def reply(self, reply: Reply) -> None:
        """One more half message is ended."""
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            self._request.reply(Reply())
        else:
            self._request.fail(self._error)

    def fail(self, error: MQError) -> None:
        """One could not be ended: the answer has the first of such errors."""
        self._error = self._error or error
        self.reply(Reply())
