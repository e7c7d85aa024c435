"""Requests that delete expired files and unused topics at once."""

from __future__ import annotations

import logging

from batonmq.broker.context import Broker
from batonmq.broker.upkeep.part import unlink
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.names import is_light

log = logging.getLogger(__name__)


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _CleanupHandlers(broker)
    dispatcher.on(wire.CleanExpiredConsumeQueue, handlers.delete_expired_queues)
    dispatcher.on(wire.CleanUnusedTopic, handlers.delete_unused_topics)
    dispatcher.on(wire.DeleteExpiredCommitLog, handlers.delete_expired_log)


class _CleanupHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def delete_expired_queues(self, request: Request, header: wire.CleanExpiredConsumeQueue) -> Reply:
        return await self._delete_expired()

    async def delete_expired_log(self, request: Request, header: wire.DeleteExpiredCommitLog) -> Reply:
        return await self._delete_expired()

    async def _delete_expired(self) -> Reply:
        """Consume queue files expire with the log files they point into, so both requests do the same."""
        await unlink(self._broker.store.delete_expired())
        return Reply()

    def delete_unused_topics(self, request: Request, header: wire.CleanUnusedTopic) -> Reply:
        broker = self._broker
        for topic in sorted({topic for topic, _ in broker.store.queues()}):
            if topic not in broker.tables.topics and not is_light(topic):
                log.info("consume queues of an unknown topic deleted topic=%s", topic)
                broker.store.delete_topic(topic)
        return Reply()
