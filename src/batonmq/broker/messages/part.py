"""The part for sends and pulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.messages import query
from batonmq.broker.messages.metrics import METRICS, MessageMetrics
from batonmq.broker.messages.new_topics import NewTopics
from batonmq.broker.messages.pull_handlers import PullHandlers
from batonmq.broker.messages.puller import Puller
from batonmq.broker.messages.replies import ReplyHandlers
from batonmq.broker.messages.send_handlers import SendHandlers
from batonmq.broker.messages.sender import Sender
from batonmq.broker.part import Part

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.members import MemberGroup
    from batonmq.common.metrics import Metric, Source
    from batonmq.net import Dispatcher
    from batonmq.store.results import QueueKey


class MessagesPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.new_topics = NewTopics(broker.tables.durable)
        self.sender = Sender(broker, self.new_topics)
        self.puller = Puller(broker)
        self._send_handlers = SendHandlers(broker, self.sender)
        self._replies = ReplyHandlers(broker, self.sender)
        if broker.replication is not None:
            # A slave holds pulls while its master is away; now it sends their consumers there.
            broker.replication.on_followed = self.puller.release_all
        broker.members.listeners.append(self._members_changed)
        broker.tables.mappings.listeners.append(self._mappings_changed)

    def handlers(self, dispatcher: Dispatcher) -> None:
        self._send_handlers.register(dispatcher)
        self._replies.register(dispatcher)
        PullHandlers(self.puller).register(dispatcher)
        query.register(dispatcher, self._broker)

    def metrics(self) -> Mapping[Metric, Source]:
        return MessageMetrics(self._broker).sources()

    @property
    def unanswered(self) -> int:
        return self._broker.appender.backlog + self.new_topics.held + self._replies.pending

    async def start(self) -> None:
        self.sender.open()
        self._send_handlers.open()

    async def stop(self) -> None:
        await self.new_topics.stop()
        await self._broker.appender.stop()

    def role_ending(self) -> None:
        self._broker.appender.abandon()
        self.new_topics.abandon()
        self.puller.release_all()

    def _mappings_changed(self) -> None:
        for topic in self._broker.tables.mappings:
            self.puller.release(topic)

    def _members_changed(self, members: MemberGroup) -> None:
        if members.known:
            own_id, appender = self._broker.settings.broker.broker_id, self._broker.appender
            fewer = 1 + len(members.others(own_id)) < appender.alive_replicas
            appender.alive_replicas = 1 + len(members.others(own_id))
            if fewer:
                appender.progress()  # sends under way may need fewer copies now

    def records_visible(self, grown: Sequence[tuple[QueueKey, int]]) -> None:
        self.puller.on_visible(grown)
