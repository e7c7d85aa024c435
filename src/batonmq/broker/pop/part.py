"""The part for pop consumption."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.part import Part
from batonmq.broker.pop.acknowledger import Acknowledger
from batonmq.broker.pop.assignments import MODES, Assignments
from batonmq.broker.pop.core import CheckPoints
from batonmq.broker.pop.handlers import PopHandlers
from batonmq.broker.pop.journal import SETTLE_INTERVAL_S, Journal
from batonmq.broker.pop.metrics import METRICS, PopMetrics
from batonmq.broker.pop.orders import Orders
from batonmq.broker.pop.popper import Popper
from batonmq.broker.pop.positions import Positions
from batonmq.broker.pop.reviver import Reviver
from batonmq.broker.pop.taker import Taker
from batonmq.broker.tables.copying import if_it_acted
from batonmq.broker.tables.persistence import Table

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.positions import QueueOfGroup
    from batonmq.broker.role import RoleState
    from batonmq.common.metrics import Metric, Source
    from batonmq.net import Dispatcher
    from batonmq.protocol.bodies.topics import TopicConfig
    from batonmq.store.results import QueueKey


class PopPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.journal = Journal(broker)
        self.check_points = CheckPoints()
        self.positions = Positions(broker, self.journal)
        self.orders = Orders(broker, self.journal, self.positions)
        self.taker = Taker(broker, self.journal, self.check_points, self.positions, self.orders)
        self.popper = Popper(broker, self.taker, self.positions, self.orders)
        self.acknowledger = Acknowledger(
            broker, self.journal, self.check_points, self.positions, self.orders, self.taker
        )
        self.reviver = Reviver(
            broker,
            self.journal,
            self.check_points,
            self.positions,
            self.orders,
            self.taker,
            self.popper,
            self.acknowledger,
        )
        self.assignments = Assignments(broker)
        self._handlers = PopHandlers(broker, self.popper, self.acknowledger)
        self._serving = False
        """Whether this broker is master, or acts as one."""
        self._following: asyncio.TimerHandle | None = None
        broker.tables.topics.listeners.append(self._topics_changed)

    def tables(self) -> Sequence[Table]:
        settings, modes = self._broker.settings, self.assignments.modes
        return (
            Table(
                name=MODES,
                encode=modes.encode,
                restore=modes.restore,
                copy=self.assignments.copy,
                take_back=lambda member: if_it_acted(member, self.assignments.copy),
            ),
            Table(
                name="consumerOrderInfo",
                encode=self.orders.encode,
                restore=self.orders.restore,
                interval_ms=lambda: settings.broker.flush_consumer_offset_interval,
                take_changed=self.orders.take_changed,
            ),
        )

    def handlers(self, dispatcher: Dispatcher) -> None:
        self._handlers.register(dispatcher)
        self.assignments.register(dispatcher)

    def metrics(self) -> Mapping[Metric, Source]:
        return PopMetrics(
            self._broker,
            self.journal,
            self.check_points,
            self.positions,
            self.journal.stored,
            self.reviver.retries,
        ).sources()

    @property
    def unanswered(self) -> int:
        return self._handlers.unanswered

    def role_ending(self) -> None:
        self._serving = False
        if self._following is not None:
            self._follow()
            self._following.cancel()
            self._following = None
        self.popper.release_all()
        self.acknowledger.stop()
        self.orders.stop()
        self.journal.settle()
        self.journal.end()
        self.reviver.forget()
        self.positions.clear()

    def role_changed(self, role: RoleState) -> None:
        # A master with a newer epoch continues: its log and all that is known of it stay.
        if role.serves and not self._serving:
            self._serving = True
            self.positions.held = role.is_acting
            if role.is_acting:
                self._follow()
            self.journal.begin()
            self.reviver.begin()

    def _follow(self) -> None:
        """On an acting master the groups' offsets stay before the messages that are handed out: no log has
        their check points, so the next master hands them out again."""
        least: dict[QueueOfGroup, int] = {}
        for entry in self.check_points:
            if entry.volatile and not entry.done:
                key, first = entry.key[:3], entry.unacknowledged[0]
                least[key] = min(first, least.get(key, first))
        self.positions.follow(least)
        self._following = asyncio.get_running_loop().call_later(SETTLE_INTERVAL_S, self._follow)

    async def stop(self) -> None:
        await self.reviver.end()

    def records_visible(self, grown: Sequence[tuple[QueueKey, int]]) -> None:
        self.popper.on_visible(grown)
        topic = self.journal.topic
        self.reviver.on_visible()
        if any(name == topic for (name, _), _ in grown):
            self.reviver.read_gaps()

    def _topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        if changed:
            return
        # A topic was deleted.
        self.positions.forget_topics()
        self.orders.forget_topics()
        self.reviver.forget_topics()
