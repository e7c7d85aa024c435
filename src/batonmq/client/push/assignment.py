"""Takes this client's share of the group's queues, and gives queues up as clients come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from batonmq.client.offsets import OffsetStore
from batonmq.client.push.assigned import Assigned
from batonmq.client.push.heartbeats import Heartbeats
from batonmq.client.push.locks import QueueLocks
from batonmq.client.push.outages import Outages
from batonmq.client.push.subscriptions import Subscriptions
from batonmq.client.push.tasks import cancel, log, spawn
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
AT_A_TIME = 32
"""So many offsets are committed at the same time: one by one a broker that does not answer would take a
timeout for each of its queues."""
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
        outages: Outages,
        begin: Callable[[Assigned], None],
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._model = model
        self._offsets = offsets
        self._heartbeats = heartbeats
        self._locks = locks
        self._outages = outages
        self._begin = begin
        self._assigned: dict[MessageQueue, Assigned] = {}
        self._leaving: dict[MessageQueue, Assigned] = {}
        """Dropped, but not committed and unlocked yet. Such a queue is not taken again before that."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._now = asyncio.Event()

    @property
    def queues(self) -> Mapping[MessageQueue, Assigned]:
        """Those that are ours now; a live view."""
        return self._assigned

    def held(self) -> list[Assigned]:
        """Those, and the ones that are not free for others yet."""
        return [*self._assigned.values(), *self._leaving.values()]

    async def stop(self) -> list[Assigned]:
        """Drop all queues; `give_up` is then the caller's, once no handler works on them."""
        await cancel(self._tasks)
        held = self.held()
        for each in held:
            each.dropped = True
        return held

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
        lost = [queue for queue in self._assigned if queue.topic == topic and queue not in wanted]
        given_up = [self._drop(queue) for queue in lost]
        idle = [held for held in given_up if not held.working.locked()]
        for held in given_up:
            if held.working.locked():
                log.info("%s is released when its handler has returned", held.queue)
                spawn(self._leave(held), self._tasks)
        await cancel(task for held in idle for task in held.tasks)
        await self.give_up(idle)
        for held in idle:
            self._left(held)
        for queue in share:
            if queue not in self._assigned and queue not in self._leaving:
                held = self._assigned[queue] = Assigned(queue)
                self._begin(held)
                log.info("queue assigned: %s", queue)

    def _drop(self, queue: MessageQueue) -> Assigned:
        """A queue is no longer ours: no call begins."""
        held = self._leaving[queue] = self._assigned.pop(queue)
        held.dropped = True
        return held

    async def _leave(self, held: Assigned, offset: int | None = None) -> None:
        """Let go of a queue once no call works on it in order: another client would work on it meanwhile.
        With ``offset`` it is taken again there."""
        async with held.working:
            await cancel(held.tasks)
            if offset is None:
                await self.give_up([held])
            else:
                await self._commit_reset(held.queue, offset)
        self._left(held)
        self._now.set()

    def _left(self, held: Assigned) -> None:
        del self._leaving[held.queue]
        log.info("queue released: %s", held.queue)

    # -- offsets

    async def give_up(self, held: Sequence[Assigned]) -> None:
        """Commit and unlock queues that are no longer ours. No queue waits for those of another broker,
        which may not answer."""
        by_broker: dict[str, list[Assigned]] = {}
        for each in held:
            by_broker.setdefault(self._broker(each), []).append(each)
        await asyncio.gather(*map(self._give_up, by_broker.values()))

    async def _give_up(self, held: Sequence[Assigned]) -> None:
        await self._commit(held, "was not committed")
        if self._locks is not None:
            await self._locks.unlock(held)

    async def commit(self, interval_s: float) -> None:
        """Commit what is done, again and again."""
        while True:
            await asyncio.sleep(interval_s)
            reached = [
                held for held in self._assigned.values() if not self._outages.lasts(self._broker(held))
            ]
            await self._commit(reached, "is committed later")

    async def _commit(self, held: Sequence[Assigned], outcome: str) -> None:
        """Commit many queues at a time; ``outcome`` says what becomes of those that fail. One line for each
        broker that does not answer: a request to each of its queues would take its timeout."""
        silent: dict[str, int] = {}

        async def one(each: Assigned) -> None:
            offset, broker = each.buffer.commit_offset, self._broker(each)
            if each.buffer.next_offset < 0 or offset < each.floor:
                return
            if each.provisional and self._served(each):
                return
            if broker in silent:
                silent[broker] += 1
                return
            try:
                await self._offsets.commit(each.queue, offset)
            except NetError as error:
                if broker not in silent:
                    log.warning("offset of %s %s: %s", each.queue, outcome, error)
                silent[broker] = silent.get(broker, -1) + 1
            except (MQError, OSError) as error:
                log.warning("offset of %s %s: %s", each.queue, outcome, error)

        await self._for_each(held, one)
        for broker, others in silent.items():
            if others:
                log.warning("offset of %d more queues at %s %s", others, broker, outcome)

    def _broker(self, held: Assigned) -> str:
        route = self._session.known_route(held.queue.topic)
        return (route.broker_of(held.queue) if route is not None else "") or held.queue.broker_name

    def _served(self, held: Assigned) -> bool:
        """Whether the queue has a master. Its offset is looked at first (`StartOffsets.confirm`)."""
        route = self._session.known_route(held.queue.topic)
        return route is not None and route.master(route.broker_of(held.queue)) is not None

    async def _for_each(self, held: Sequence[Assigned], work: Callable[[Assigned], Awaitable[None]]) -> None:
        """Work on queues, `AT_A_TIME` at a time."""
        left = iter(held)

        async def some() -> None:
            for each in left:
                await work(each)

        await asyncio.gather(*(some() for _ in range(min(AT_A_TIME, len(held)))))

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from other offsets: the queues are given up and taken again."""
        for queue, offset in offsets.items():
            if queue in self._assigned:
                spawn(self._leave(self._drop(queue), offset), self._tasks)

    async def _commit_reset(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._offsets.commit(queue, offset)
            log.info("%s is reset to %d", queue, offset)
        except (NetError, MQError, OSError) as error:
            log.warning("reset of %s to %d was not committed: %s", queue, offset, error)
