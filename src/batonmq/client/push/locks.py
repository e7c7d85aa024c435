"""Locks queues that are consumed in order: their broker grants each to one client of the group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from batonmq.client.push.assigned import Assigned
from batonmq.client.push.outages import Outages
from batonmq.client.push.tasks import log
from batonmq.client.session import ClientSession
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq, UnlockBatchMq
from batonmq.protocol.json import decode, encode

LOCK_INTERVAL_S = 20.0
LOCK_LIFE_S = 30.0
"""A queue lock that was not renewed for this long must not be relied on (brokers drop it after 60 s)."""


class QueueLocks:
    """Locks queues for this client; ``pause_s`` lies between two tries while another client has one."""

    def __init__(self, session: ClientSession, group: str, pause_s: float, outages: Outages) -> None:
        self._session = session
        self._group = group
        self._pause_s = pause_s
        self._outages = outages

    async def may_work(self, held: Assigned) -> bool:
        """A queue must be locked where it is; False after a pause when another client has it."""
        if held.locked_until >= asyncio.get_running_loop().time() and held.locked_at == self._broker(held):
            return True
        if await self._lock(held):
            return True
        await asyncio.sleep(self._pause_s)
        return False

    async def renew(self, queues: Callable[[], Iterable[Assigned]]) -> None:
        """Keep the locks of these queues until they are given back."""
        while True:
            await asyncio.sleep(LOCK_INTERVAL_S)
            for held in queues():
                if not held.unlocked:
                    await self._lock(held)

    async def _lock(self, held: Assigned) -> bool:
        """Have the queue for ourselves, as its broker sees it."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        body = encode(LockBatchRequestBody(self._group, self._session.client_id, False, [held.queue]))
        try:
            answer = await self._session.call_for(held.queue, LockBatchMq(), body, timeout_ms=1_000)
        except (NetError, MQError) as error:
            broker = self._broker(held) or held.queue.broker_name
            what = f"queues at {broker} are not locked"
            self._outages.tell(broker, what, error, loop.time(), logging.INFO)
            return False
        locked = decode(answer.body, LockBatchResponseBody).lock_ok_mq_set
        if held.queue in locked:
            held.locked_until = asked + LOCK_LIFE_S
            held.locked_at = self._broker(held)
            return True
        return False

    def _broker(self, held: Assigned) -> str:
        route = self._session.known_route(held.queue.topic)
        return route.broker_of(held.queue) if route is not None else held.locked_at

    async def unlock(self, held: Iterable[Assigned]) -> None:
        """Let other clients have these queues of one broker, as far as they were ever locked: with one
        request, as RocketMQ's client does."""
        queues = []
        for each in held:
            each.unlocked = True
            if each.locked_until:
                queues.append(each.queue)
        if not queues:
            return
        body = encode(UnlockBatchRequestBody(self._group, self._session.client_id, False, queues))
        try:
            await self._session.call_for(queues[0], UnlockBatchMq(), body, timeout_ms=1_000)
        except (NetError, MQError) as error:
            others = f" and {len(queues) - 1} more queues of its broker" if len(queues) > 1 else ""
            log.warning("%s%s: locked until that expires: %s", queues[0], others, error)
