"""Renews popped messages while they are handled, and acknowledges them afterwards.

A message is hidden from the group for a while only. `Renewal` hides those that wait or are being handled
again in time. `Acks` sends acks in batches: what comes while a request is under way goes into the next one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from batonmq.client.pop.received import receipt_of
from batonmq.client.pop.requests import PopRequests
from batonmq.client.push.tasks import cancel, log, spawn
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.pop import MAX_MESSAGES

RETRY_PAUSE_S = 0.1
"""Between two attempts to acknowledge."""
MAX_BATCH = 8 * MAX_MESSAGES
ORDERED_RETRY_S = 1
"""When a message of an ordered pop comes again."""
RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""When a message comes again, by the number of earlier attempts (`popDelayLevel` of Java's consumers)."""
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The default `messageDelayLevel`, which `RetryLater` names."""


def retry_delay_s(delay_level: int, reconsume_times: int, *, ordered: bool = False) -> int:
    """How long a failed message stays hidden."""
    if delay_level > 0:
        return LEVELS_S[min(delay_level, len(LEVELS_S)) - 1]
    if ordered:
        return ORDERED_RETRY_S
    return RETRY_DELAYS_S[min(max(0, reconsume_times), len(RETRY_DELAYS_S) - 1)]


class InFlight:
    """A message that was popped and is not settled."""

    __slots__ = ("hidden_until", "lock", "message", "settled", "since")

    def __init__(self, message: MessageExt, hidden_until: float, since: float) -> None:
        self.message = message
        self.hidden_until = hidden_until
        """Loop time."""
        self.since = since
        self.settled = False
        self.lock = asyncio.Lock()
        """Held while its receipt changes."""


class Renewal:
    """Keeps messages hidden that are not settled, each for at most ``limit_s``."""

    def __init__(self, requests: PopRequests, invisible_ms: int, limit_s: float) -> None:
        self._requests = requests
        self._invisible_ms = invisible_ms
        self._limit_s = limit_s
        self._held: dict[InFlight, None] = {}

    def hold(self, messages: Iterable[MessageExt], popped_at: float) -> list[InFlight]:
        """``popped_at``: loop time before the pop was sent."""
        held = [InFlight(message, popped_at + self._invisible_ms / 1000, popped_at) for message in messages]
        self._held.update(dict.fromkeys(held))
        return held

    def release(self, one: InFlight) -> None:
        one.settled = True
        self._held.pop(one, None)

    async def run(self) -> None:
        """Renew what is hidden for less than half its time."""
        half_s = self._invisible_ms / 2000
        while True:
            await asyncio.sleep(half_s / 3)
            now = asyncio.get_running_loop().time()
            due = [
                one
                for one in self._held
                if one.hidden_until - now <= half_s and now - one.since < self._limit_s
            ]
            if due:
                await asyncio.gather(*map(self._renew, due))

    async def _renew(self, one: InFlight) -> None:
        async with one.lock:
            if one.settled:
                return
            asked = asyncio.get_running_loop().time()
            try:
                await self._requests.change_invisible(one.message, self._invisible_ms, suspend=True)
                one.hidden_until = asked + self._invisible_ms / 1000
            except (NetError, MQError) as error:
                log.warning("message %s is not hidden for longer: %s", one.message.message_id, error)


class Acks:
    """Acknowledges messages in batches, one request at a time to each broker."""

    def __init__(self, requests: PopRequests) -> None:
        self._requests = requests
        self._queued: dict[str, list[InFlight]] = defaultdict(list)
        self._sending: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, one: InFlight) -> None:
        broker_name = receipt_of(one.message).broker_name
        self._queued[broker_name].append(one)
        if broker_name not in self._sending:
            self._sending.add(broker_name)
            spawn(self._send(broker_name), self._tasks)

    async def end(self, timeout_s: float) -> None:
        """Wait until all acks are sent, at most so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await cancel(self._tasks)

    async def _send(self, broker_name: str) -> None:
        await asyncio.sleep(0)  # what is settled in this loop turn goes along
        loop = asyncio.get_running_loop()
        queued = self._queued[broker_name]
        try:
            while queued:
                batch = queued[:MAX_BATCH]
                del queued[:MAX_BATCH]
                try:
                    await self._requests.ack([one.message for one in batch])
                except (NetError, MQError) as error:
                    lost = [one for one in batch if one.hidden_until <= loop.time()]
                    if lost or not (isinstance(error, NetError) or error.retryable):
                        log.warning(
                            "%d messages could not be acknowledged and will be delivered again: %s",
                            len(lost) or len(batch),
                            error,
                        )
                    if isinstance(error, NetError) or error.retryable:
                        queued[:0] = [one for one in batch if one.hidden_until > loop.time()]
                        await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            self._sending.discard(broker_name)
