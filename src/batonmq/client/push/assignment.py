"""Which queues are this client's: its share of the group's, taken and given up as clients come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from batonmq.client.offsets import OffsetStore
from batonmq.client.push.assigned import Assigned
from batonmq.client.push.heartbeats import Heartbeats
from batonmq.client.push.locks import QueueLocks
from batonmq.client.push.subscriptions import Subscriptions
from batonmq.client.push.tasks import cancel, log
from batonmq.client.rebalance import allocate_averagely
from batonmq.client.session import ClientSession
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumerIdList, MessageModel
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import GetConsumerListByGroup
from batonmq.protocol.json import decode
from batonmq.protocol.names import is_retry_topic
from batonmq.routing.routes import TopicRoute

REBALANCE_INTERVAL_S = 20.0
FIRST_REBALANCE_S = 1.0
"""The first rebalances follow quickly: the retry topic appears only after our first heartbeat."""


class Assignment:
    """The queues that are ours, and their offsets for as long as they are.

    ``begin`` is called with each queue that was taken; what it starts belongs into `Assigned.tasks`.
    ``locks`` is None unless queues are consumed in order.
    """

    def __init__(
        self,
        session: ClientSession,
        group: str,
        subscriptions: Subscriptions,
        model: MessageModel,
        *,
        offsets: OffsetStore,
        heartbeats: Heartbeats,
        locks: QueueLocks | None,
        begin: Callable[[Assigned], None],
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._model = model
        self._offsets = offsets
        self._heartbeats = heartbeats
        self._locks = locks
        self._begin = begin
        self._assigned: dict[MessageQueue, Assigned] = {}
        self._now = asyncio.Event()

    @property
    def queues(self) -> Mapping[MessageQueue, Assigned]:
        """Those that are ours now; a live view."""
        return self._assigned

    # -- rebalance

    def rebalance_soon(self) -> None:
        """Something changed: do not wait for the next turn."""
        self._now.set()

    async def run(self) -> None:
        interval_s = FIRST_REBALANCE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._now.wait()
            interval_s = min(2 * interval_s, REBALANCE_INTERVAL_S)
            self._now.clear()
            await self.rebalance()

    async def rebalance(self) -> None:
        for topic in self._subscriptions:
            try:
                route = self._session.known_route(topic) or await self._session.refresh(topic)
                share = await self._share(topic, route)
            except (NetError, MQError) as error:
                if not is_retry_topic(topic):  # which does not exist before the first message failed
                    log.warning("rebalance of %s is postponed: %s", topic, error)
                continue
            if share is not None:
                await self._take(topic, share)

    async def _share(self, topic: str, route: TopicRoute) -> list[MessageQueue] | None:
        """Our queues of a topic; None when they cannot be determined now."""
        if self._model is MessageModel.BROADCASTING:
            return list(route.read_queues)
        address = next(filter(None, map(route.replica, sorted(route.brokers))), None)
        if address is None:
            return None
        answer = await self._session.net.call(address, GetConsumerListByGroup(self._group))
        clients = decode(answer.body, ConsumerIdList).consumer_id_list
        client_id = self._session.client_id
        if client_id not in clients:
            self._heartbeats.soon()
            return None
        return allocate_averagely(client_id, clients, route.read_queues)

    async def _take(self, topic: str, share: list[MessageQueue]) -> None:
        wanted = set(share)
        for queue in [queue for queue in self._assigned if queue.topic == topic and queue not in wanted]:
            held = self._assigned.pop(queue)
            held.dropped = True
            await cancel(held.tasks)
            await self.give_up(held)
            log.info("gave up %s", queue)
        for queue in share:
            if queue not in self._assigned:
                held = self._assigned[queue] = Assigned(queue)
                self._begin(held)
                log.info("took %s", queue)

    # -- offsets

    async def give_up(self, held: Assigned) -> None:
        """Commit and unlock a queue that is not ours any more."""
        if held.buffer.next_offset >= 0:
            try:
                await self._offsets.commit(held.queue, held.buffer.commit_offset)
            except (NetError, MQError, OSError) as error:
                log.warning("offset of %s was not committed: %s", held.queue, error)
        if self._locks is not None:
            await self._locks.unlock(held)

    async def commit(self, interval_s: float) -> None:
        """Commit what is done, again and again."""
        while True:
            await asyncio.sleep(interval_s)
            for held in list(self._assigned.values()):
                if held.buffer.next_offset >= 0:
                    try:
                        await self._offsets.commit(held.queue, held.buffer.commit_offset)
                    except (NetError, MQError, OSError) as error:
                        log.warning("offset of %s is committed later: %s", held.queue, error)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from other offsets: the queues are given up and taken again."""
        for queue, offset in offsets.items():
            held = self._assigned.pop(queue, None)
            if held is None:
                continue
            held.dropped = True
            await cancel(held.tasks)
            try:
                await self._offsets.commit(queue, offset)
            except (NetError, MQError, OSError) as error:
                log.warning("reset of %s to %d was not committed: %s", queue, offset, error)
            log.info("%s is reset to %d", queue, offset)
        self._now.set()
