"""A process that runs brokers of a container: the interface of the container's process and of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from batonmq.container.broker_file import BrokerFile
from batonmq.container.core import BrokerIdentity

Ended = Callable[[BrokerIdentity, str], None]
"""Called after a broker has stopped itself, with the cause in one line."""


class StartFailed(Exception):
    """A broker did not start and left nothing behind; the message has the reason in one line."""


class StopFailed(Exception):
    """A broker stopped, but not in order; the message has the reason in one line."""


class Place(Protocol):
    """One process that runs brokers. A broker that fails does not affect the others."""

    async def open(self) -> None:
        """Get ready for brokers. Raises `OSError`."""

    async def start(self, file: BrokerFile) -> None:
        """Start a broker; it serves on return. Raises `StartFailed`."""

    async def stop(self, identity: BrokerIdentity) -> None:
        """Stop a running broker: it unregisters, answers its pending requests, and has everything on disk on
        return. Raises `StopFailed` if that failed; the broker is gone in both cases."""

    async def set_name_servers(self, addresses: str) -> None:
        """From now on brokers register at ``host:port;host:port``."""

    async def close(self) -> None:
        """Stop all brokers."""
