"""Topics that sends made: their messages are acknowledged when slaves and disk know them.

Only the log would bring such a topic back otherwise, which does not say how many queues it has. The messages
are in the log at once, in the order in which they came.
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
    """Those that are not known yet."""

    def __init__(self, keep: Callable[[], Awaitable[None]]) -> None:
        """`keep` waits until slaves and disk have the tables as they are when it is called. Raises `MQError`
        if the disk does not take them; messages are in the log whatever it does."""
        self._keep = keep
        self.pending: dict[str, _NewTopic] = {}
        """By name; for `in`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.held = 0
        """Messages that were handed over and are not answered for."""

    def created(self, topic: str) -> None:
        """A send has just made it."""
        new = self.pending[topic] = _NewTopic(self)
        task = asyncio.get_running_loop().create_task(self._settle(topic, new))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hold(self, topic: str, waiter: Waiter) -> Waiter:
        """Whom to hand to the appender with a message for `topic`, which is one of `unknown`."""
        self.held += 1
        return _FirstSend(self.pending[topic], waiter)

    def abandon(self) -> None:
        """This broker is no longer master, or is being stopped: what is held gets an error."""
        topics, self.pending = self.pending, {}
        for new in topics.values():
            new.end(known=False)

    async def stop(self) -> None:
        """Nothing is under way after this."""
        self.abandon()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, topic: str, new: _NewTopic) -> None:
        known = False
        try:
            await self._keep()
            known = True
        except MQError as error:
            log.error("topic %s: %s", topic, error.remark)
            known = True
        finally:
            if self.pending.get(topic) is new:
                del self.pending[topic]
            new.end(known=known)


class _NewTopic:
    __slots__ = ("_held", "_known", "_owner")

    def __init__(self, owner: NewTopics) -> None:
        self._owner = owner
        self._known: bool | None = None
        """None: not yet; False: it will not be waited for."""
        self._held: list[tuple[Waiter, PutStatus, PutResult | None]] = []

    def stored(self, waiter: Waiter, status: PutStatus, result: PutResult | None) -> None:
        if self._known is None:
            self._held.append((waiter, status, result))
            return
        self._owner.held -= 1
        if not self._known and result is not None:
            status, result = PutStatus.SERVICE_NOT_AVAILABLE, None
        waiter.stored(status, result)

    def end(self, *, known: bool) -> None:
        """Once: later calls do nothing."""
        if self._known is None:
            self._known = known
            held, self._held = self._held, []
            for waiter, status, result in held:
                self.stored(waiter, status, result)


class _FirstSend:
    """Stands for the waiter of a message for a new topic."""

    __slots__ = ("_topic", "_waiter", "wait")

    def __init__(self, topic: _NewTopic, waiter: Waiter) -> None:
        self._topic = topic
        self._waiter = waiter
        self.wait = waiter.wait

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        self._topic.stored(self._waiter, status, result)
