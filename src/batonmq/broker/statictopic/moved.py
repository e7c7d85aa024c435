"""Messages for queues that this broker no longer leads go to the broker that does.

A delayed, timed or half message names the physical queue that led when it was sent. Once the queue has moved,
consumers have passed the end of that physical queue and do not come back. RocketMQ stores the message there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.escape.core import outward, send_header
from batonmq.broker.messages.appender import PutStatus
from batonmq.common.tasks import Tasks
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.routing.static_topics import led_queues

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.appender import Waiter
    from batonmq.broker.statictopic.other_brokers import OtherBrokers
    from batonmq.protocol.bodies.static_topics import TopicQueueMappingDetail
    from batonmq.protocol.message.record import StoredMessage

log = logging.getLogger(__name__)

MOST: Final = 10_000
"""Most messages on their way; further ones are refused, and those who store them try again."""
_STORED: Final = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)


class MovedQueues:
    """Passes messages on; for `Appender.divert`."""

    def __init__(self, broker: Broker, others: OtherBrokers) -> None:
        config = broker.settings.broker
        self._broker = broker
        self._others = others
        self._group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._tasks = Tasks()
        self._under_way = 0
        self._led: dict[str, dict[int, int]] = {}
        """Static topic -> logical queues that this broker leads -> physical queue."""
        self._problem = ""
        """The last problem that was logged; it is not logged twice in a row."""

    def mappings_changed(self) -> None:
        """The table of static topics has changed."""
        mappings = self._broker.tables.mappings
        self._led = {topic: led_queues(mapping) for topic, mapping in mappings.table.items()}
        self._broker.appender.divert = self.take if self._led else None

    async def stop(self) -> None:
        """Cancel pending sends; their waiters are not called."""
        await self._tasks.cancel()

    def take(self, message: StoredMessage, waiter: Waiter) -> bool:
        """Whether the message goes elsewhere; `waiter` is then called with PUT_OK and no result, or with the
        reason why the leader does not have it."""
        led = self._led.get(message.topic)
        mapping = self._broker.tables.mappings.get(message.topic)
        if led is None or mapping is None or message.queue_id in led.values():
            return False
        logical = _logical(mapping, message.queue_id)
        if logical in led:
            message.queue_id = led[logical]
            return False
        if self._under_way >= MOST:
            waiter.stored(PutStatus.SERVICE_NOT_AVAILABLE, None)
            return True
        self._under_way += 1
        self._tasks.spawn(self._pass_on(message, logical, waiter))
        return True

    async def _pass_on(self, message: StoredMessage, logical: int, waiter: Waiter) -> None:
        status = PutStatus.PUT_TO_REMOTE_BROKER_FAIL
        topic = message.topic
        try:
            message = outward(message, self._broker.settings.broker.timer_precision_ms)
            name = await self._others.leader(topic, logical)
            header = send_header(message, logical, name, self._group)
            await self._others.call(name, topic, header, message.body, accept=_STORED)
            status, self._problem = PutStatus.PUT_OK, ""
        except (MQError, MessageFormatError, ValueError) as error:
            self._log(f"a message for {topic}-{logical}, which has moved, is not passed on: {error}")
        except Exception:  # a bug; without an answer those who wait would never try again
            log.exception("a message for %s-%d, which has moved, is not passed on", topic, logical)
        finally:
            self._under_way -= 1
        waiter.stored(status, None)

    def _log(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s", problem)
            self._problem = problem


def _logical(mapping: TopicQueueMappingDetail, queue_id: int) -> int:
    """The logical queue that this broker's physical queue is a part of; any if that is no longer known."""
    for logical, items in mapping.hosted_queues.items():
        if any(item.bname == mapping.bname and item.queue_id == queue_id for item in items):
            return logical
    return queue_id % max(1, mapping.total_queues)
