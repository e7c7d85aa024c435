"""`Part`: one concern or feature of a broker, as the service sees it.

A feature is a folder with a part, and one line in `parts.py`. The service builds the parts in the order of
that list, restores their tables, binds their handlers, starts them in order and stops them in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.broker.tables.persistence import Table
    from batonmq.common.metrics import Metric, Source
    from batonmq.net import Connection, Dispatcher
    from batonmq.store.policy import UnitCode
    from batonmq.store.results import QueueKey


class Part:
    """Every method does nothing by default; a part overrides those it needs. All run on the broker's event
    loop."""

    METRICS: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that `metrics` returns sources for."""

    @classmethod
    def unit_codes(cls, config: BrokerConfig) -> Mapping[str, UnitCode]:
        """What consume queue units hold in place of the tags code, by topic (`StorePolicy`). Called before
        the store opens."""
        return {}

    def __init__(self, broker: Broker) -> None:
        """The store is open; no table is restored and nothing listens yet. Raises `ConfigError`."""

    # -- what it declares

    def tables(self) -> Sequence[Table]:
        """Tables to restore before the start and to keep on disk; slaves copy those with a `copy`."""
        return ()

    def handlers(self, dispatcher: Dispatcher) -> None:
        """Bind request codes. Called once, before the ports listen."""

    def metrics(self) -> Mapping[Metric, Source]:
        """The sources that exporters read."""
        return {}

    @property
    def unanswered(self) -> int:
        """Number of requests under way; a stop waits for them."""
        return 0

    # -- life cycle

    async def start(self) -> None:
        """The tables are restored, the ports listen and the addresses are known."""

    async def withdraw(self) -> None:
        """The broker is about to stop: leave the controllers and name servers, so that no client finds it."""

    async def stop(self) -> None:
        """No more requests arrive. Called once, also after a start that failed."""

    # -- events

    def role_ending(self) -> None:
        """See `RoleListener`."""

    def term_begins(self, epoch: int) -> None:
        """See `RoleListener`."""

    def role_changed(self, role: RoleState) -> None:
        """See `RoleListener`."""

    def records_visible(self, grown: Sequence[tuple[QueueKey, int]]) -> None:
        """Consumers can see more records: each queue with its new max offset. At most once per loop turn."""

    def connection_closed(self, connection: Connection) -> None:
        """A client's connection has ended."""


def overrides(part: Part, method: Callable[..., Any]) -> bool:
    """Whether the part overrides this method of `Part`; the hot path does not call empty ones."""
    return getattr(type(part), method.__name__) is not method
