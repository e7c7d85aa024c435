"""Where brokers of a container run: the interface that the container's own process and its workers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from batonmq.container.broker_file import BrokerFile
from batonmq.container.core import BrokerIdentity

Ended = Callable[[BrokerIdentity, str], None]
"""Called after a broker has stopped itself, with the cause in one line."""


class StartFailed(Exception):
    """A broker did not start; the message says why in one line, and nothing of it is left."""


class StopFailed(Exception):
    """A broker stopped, but not in order; the message says why in one line."""


class Place(Protocol):
    """One process that runs brokers. A broker's failure concerns no other broker."""

    async def open(self) -> None:
        """Ready for brokers. Raises `OSError`."""

    async def start(self, file: BrokerFile) -> None:
        """Start a broker; it serves on return. Raises `StartFailed`."""

    async def stop(self, identity: BrokerIdentity) -> None:
        """Stop a running broker: it leaves the name servers, answers what is under way, and has everything
        on disk on return. Raises `StopFailed` if that failed; the broker is gone all the same."""

    async def set_name_servers(self, addresses: str) -> None:
        """Brokers register at ``host:port;host:port`` from now on."""

    async def close(self) -> None:
        """Stop all brokers."""
