"""The requests that wait until half messages are committed: about one, or about many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from batonmq.net.dispatch import Reply

if TYPE_CHECKING:
    from batonmq.net.dispatch import Request
    from batonmq.protocol.errors import MQError


class Asker(Protocol):
    """Gets exactly one of the two calls."""

    def reply(self, reply: Reply) -> None:
        """The half message was committed or rolled back."""

    def fail(self, error: MQError) -> None:
        """The half message was not ended."""


class SharedRequest:
    """A request that is answered when each of its half messages is ended or has failed."""

    def __init__(self, request: Request, count: int) -> None:
        self._request = request
        self._left = count
        self._error: MQError | None = None

    def reply(self, reply: Reply) -> None:
        """One more half message was ended."""
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            self._request.reply(Reply())
        else:
            self._request.fail(self._error)

    def fail(self, error: MQError) -> None:
        """A half message could not be ended; the answer has the first such error."""
        self._error = self._error or error
        self.reply(Reply())
