"""Chooses the queue of the next message. No I/O: time comes in as milliseconds of a monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.routing.routes import TopicRoute

FAULT_MS = 1_000
"""How long a broker that failed is passed over while another one can be had."""


@dataclass(slots=True)
class QueuePicker:
    """Picks the queue of the next message: round robin, passing over brokers that failed lately."""

    start: int = 0
    """Where the first topic's round begins; random, so that producers do not march in step."""
    _next: dict[str, int] = field(default_factory=dict)
    _faulty_until: dict[str, int] = field(default_factory=dict)

    def pick(
        self, route: TopicRoute, topic: str, now_ms: int, avoid: str | None = None
    ) -> MessageQueue | None:
        """The next queue, on another broker than ``avoid`` if there is one; None without queues."""
        queues = route.write_queues
        if not queues:
            return None
        number = self._next.get(topic, self.start)
        self._next[topic] = number + 1
        if not self._faulty_until and avoid is None:
            return queues[number % len(queues)]
        fallback: MessageQueue | None = None
        for step in range(len(queues)):
            queue = queues[(number + step) % len(queues)]
            broker_name = route.broker_of(queue)
            if broker_name != avoid and not self.is_faulty(broker_name, now_ms):
                self._next[topic] = number + step + 1
                return queue
            if fallback is None and broker_name != avoid:
                fallback = queue
        return fallback or queues[number % len(queues)]

    def failed(self, broker_name: str, now_ms: int) -> None:
        """Pass over this broker for a while."""
        self._faulty_until[broker_name] = now_ms + FAULT_MS

    def worked(self, broker_name: str) -> None:
        """This broker answered: take it again."""
        if self._faulty_until:
            self._faulty_until.pop(broker_name, None)

    def is_faulty(self, broker_name: str, now_ms: int) -> bool:
        return self._faulty_until.get(broker_name, now_ms) > now_ms
