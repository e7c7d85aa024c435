"""Stories with timed messages: under the faults of every other story, none comes early, none is lost.

A producer sends messages that are due some seconds later, beside the traffic of `scenario.py`. The brokers'
clocks are wrong by up to two minutes, so after a switch a message may come that much late or early by the
clock of the sender; by the clock of the broker that delivers it, never early.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt, decode_records
from tests.simulation.cluster import SimClock, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.scenario import Scenario
from tests.simulation.story import QUEUES, Shape, Story, Violation, play, scratch

TIMED = "timed"
PRECISION_MS = 1_000
LATEST_S = 400.0
"""All clocks' mistakes together, and some: time after which every message must have come."""


@dataclass
class Timers:
    """What became of the timed messages."""

    acked: dict[str, int] = field(default_factory=dict)
    """Key -> delay in ms."""
    delivered: Counter[str] = field(default_factory=Counter)
    rolled: int = 0
    story: Story | None = None

    @property
    def repeated(self) -> int:
        """Deliveries beyond the first one of each message."""
        return sum(self.delivered.values()) - len(self.delivered)


def run_timers(seed: int, shape: Shape) -> Timers:
    """Run the story of `seed` with timed messages; raises `Violation`."""
    loop = SimLoop(seed)
    story, timers = Story(seed), Timers()
    timers.story = story
    with scratch("timers", seed) as root:
        cluster = SimCluster(
            loop, root, replicas=shape.replicas, controllers=shape.controllers, sync_flush=shape.sync_flush
        )
        story.events = cluster.events
        with cluster.world.in_force():
            story.trace = play(loop, seed, story.events, TimerScenario(cluster, story, shape, timers).play)
        return timers


def check_time(record: MessageExt) -> None:
    """Raises `Violation` for a timed message that came early by the clock of the broker that delivered it."""
    properties = record.properties
    asked_ms = int(properties.get("TIMER_DELIVER_MS", 0))
    if "TIMER_OUT_MS" not in properties:
        # By the clock of its broker the time had passed when it was sent.
        early_ms = asked_ms - record.store_timestamp if asked_ms else 1
    else:
        asked_ms = max(asked_ms, int(properties["TIMER_OUT_MS"]) + PRECISION_MS)
        early_ms = asked_ms - int(properties["TIMER_DEQUEUE_MS"])
    if early_ms > 0:
        raise Violation(f"timed message {properties['KEYS']} came {early_ms} ms early")


class TimerScenario(Scenario):
    """A story with one more producer."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape, timers: Timers) -> None:
        super().__init__(cluster, story, shape)
        self.timers = timers
        self._sent = 0

    async def _play(self) -> None:
        await super()._play()
        # `_sending` is over, and all logs are equal.
        end = self.cluster.loop.now + LATEST_S
        while missing := self.timers.acked.keys() - self._look().keys():
            if self.cluster.loop.now > end:
                raise Violation(f"{len(missing)} timed messages never came, {sorted(missing)[:5]}")
            await asyncio.sleep(1)
        await asyncio.sleep(10)
        self.timers.rolled = 0
        self.timers.delivered = self._look()

    async def _create_topic(self) -> None:
        await super()._create_topic()
        async with self.cluster.admin() as admin:
            await admin.create_topic(TIMED, QUEUES)
        self.cluster.on(self.cluster.client_host, self._send_timed())

    async def _send_timed(self) -> None:
        async with self.cluster.producer() as producer:
            while self._sending:
                self._sent += 1
                key = f"t{self._sent}"
                delay_ms = int(
                    self.random.choice((0.3, 1, 2, 5, 8, 12, 20)) * self.random.uniform(500, 1_500)
                )
                if self.random.random() < 0.5:
                    timer = {"TIMER_DELAY_MS": str(delay_ms)}
                else:
                    timer = {"TIMER_DELIVER_MS": str(SimClock(self.cluster.loop).now_ms() + delay_ms)}
                message = Message(TIMED, key.encode(), keys=key, properties=timer)
                try:
                    await producer.send(message)
                except (ClientError, MQError, NetError):
                    pass  # it may come or not
                else:
                    self.timers.acked[key] = delay_ms
                await asyncio.sleep(self.random.expovariate(1 / 0.15))

    def _look(self) -> Counter[str]:
        """The messages delivered so far, by the log of the master. Raises `Violation` for an early one."""
        found: Counter[str] = Counter()
        masters = self.cluster.masters()
        if not masters:
            return found
        store = masters[0].broker.store
        for queue_id in range(QUEUES):
            offset = store.queue_bounds(TIMED, queue_id).min_offset
            while (result := store.get(TIMED, queue_id, offset, 32)).buffers:
                for view in result.buffers:
                    for record in decode_records(view):
                        self._check(record)
                        found[record.properties["KEYS"]] += 1
                offset = result.next_offset
        return found

    def _check(self, record: MessageExt) -> None:
        check_time(record)
        self.timers.rolled += "TIMER_ROLL_TIMES" in record.properties
