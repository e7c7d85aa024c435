"""Redirects: rules for messages that first wait in another topic (delayed, timed or half messages).

A feature adds a `Redirect`; every caller that stores a message applies them (`Redirects.apply`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from batonmq.protocol.message.record import StoredMessage


class Redirect(Protocol):
    """The rule for one kind of message."""

    marks: tuple[bytes, ...]
    """The encoded properties of every such message contain one of these; those of other messages may too."""

    def redirect(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        """The message to store; None if `message` is not of this kind. `properties`: its decoded properties.
        Raises `MQError` for a message that is not allowed, `MessageFormatError` if the properties become too
        long."""


class Redirects:
    """All redirects of a broker, in the order of the parts; the first one that applies is used."""

    def __init__(self) -> None:
        self.marks: tuple[bytes, ...] = ()
        self._redirects: list[Redirect] = []

    def add(self, redirect: Redirect) -> None:
        """Add a redirect; parts call it before the broker starts."""
        self._redirects.append(redirect)
        self.marks += redirect.marks

    def apply(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        """The message to store; None if no redirect applies. Raises the errors of `Redirect.redirect`."""
        for redirect in self._redirects:
            stored = redirect.redirect(message, properties)
            if stored is not None:
                return stored
        return None
