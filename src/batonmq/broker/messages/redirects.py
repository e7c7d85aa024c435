"""Messages that are stored elsewhere until their time has come: delayed, timed, half of a transaction.

A feature offers a `Redirect`; whoever stores a message runs it through `Redirects.apply`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from batonmq.protocol.message.record import StoredMessage


class Redirect(Protocol):
    """One kind of message."""

    marks: tuple[bytes, ...]
    """Bytes of which the encoded properties of each such message contain one. Others may, too."""

    def redirect(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        """The message as it is stored meanwhile, None if it is not of this kind. `properties` are the
        message's, decoded. Raises `MQError` for a message that is not allowed, `MessageFormatError` for one
        whose properties become too long."""


class Redirects:
    """All of one broker, in the order of the parts: the first that takes a message has it."""

    def __init__(self) -> None:
        self.marks: tuple[bytes, ...] = ()
        self._redirects: list[Redirect] = []

    def add(self, redirect: Redirect) -> None:
        """For parts, before the broker starts."""
        self._redirects.append(redirect)
        self.marks += redirect.marks

    def apply(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        """The message as it is stored, None if no redirect takes it. Raises as `Redirect.redirect`."""
        for redirect in self._redirects:
            stored = redirect.redirect(message, properties)
            if stored is not None:
                return stored
        return None
