"""Topics that sends created: their messages are acknowledged once slaves and disk have the topic.

Otherwise a new master could recreate the topic only from the log, which does not have its number of queues.
The messages are appended at once, in order of arrival.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from batonmq.broker.messages.appender import PutStatus, Waiter
from batonmq.protocol.errors import MQError

if TYPE_CHECKING:
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)


class NewTopics:
    """The topics that slaves or disk do not have yet."""

    def __init__(self, durable: Callable[[], Awaitable[None]]) -> None:
        """`durable` waits until slaves and disk have the current tables. It raises `MQError` if the disk
        fails; the messages are then acknowledged nevertheless."""
        self._durable = durable
        self.pending: dict[str, _NewTopic] = {}
        """By name; callers test membership."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.held = 0
        """Number of messages from `hold` whose waiters were not called yet."""

    def created(self, topic: str) -> None:
        """A send has just created the topic."""
        new = self.pending[topic] = _NewTopic(self)
        task = asyncio.get_running_loop().create_task(self._settle(topic, new))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hold(self, topic: str, waiter: Waiter) -> Waiter:
        """The waiter to pass to the appender for a message of `topic`, which must be in `pending`."""
        self.held += 1
        return _FirstSend(self.pending[topic], waiter)

    def abandon(self) -> None:
        """This broker is no longer master, or stops: the held messages get an error."""
        topics, self.pending = self.pending, {}
        for new in topics.values():
            new.end(durable=False)

    async def stop(self) -> None:
        """Refuse all held messages and cancel all tasks."""
        self.abandon()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, topic: str, new: _NewTopic) -> None:
        durable = False
        try:
            await self._durable()
            durable = True
        except MQError as error:
            log.error("topic %s: %s", topic, error.remark)
            durable = True
        finally:
            if self.pending.get(topic) is new:
                del self.pending[topic]
            new.end(durable=durable)


class _NewTopic:
    __slots__ = ("_durable", "_held", "_owner")

    def __init__(self, owner: NewTopics) -> None:
        self._owner = owner
        self._durable: bool | None = None
        """None: undecided; False: abandoned."""
        self._held: list[tuple[Waiter, PutStatus, PutResult | None]] = []

    def stored(self, waiter: Waiter, status: PutStatus, result: PutResult | None) -> None:
        if self._durable is None:
            self._held.append((waiter, status, result))
            return
        self._owner.held -= 1
        if not self._durable and result is not None:
            status, result = PutStatus.SERVICE_NOT_AVAILABLE, None
        waiter.stored(status, result)

    def end(self, *, durable: bool) -> None:
        """Call the held waiters; later calls do nothing."""
        if self._durable is None:
            self._durable = durable
            held, self._held = self._held, []
            for waiter, status, result in held:
                self.stored(waiter, status, result)


class _FirstSend:
    """Wraps the waiter of a message for a new topic."""

    __slots__ = ("_topic", "_waiter", "wait")

    def __init__(self, topic: _NewTopic, waiter: Waiter) -> None:
        self._topic = topic
        self._waiter = waiter
        self.wait = waiter.wait

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        self._topic.stored(self._waiter, status, result)
