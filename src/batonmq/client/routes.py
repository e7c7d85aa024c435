"""Where a topic's queues are, and which of them to send to next. Decides; never waits, never talks.

Time comes in as milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from batonmq.net.client import split_address
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import MASTER_ID, Perm

FAULT_MS = 1_000
"""How long a broker that failed is passed over while another one can be had."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's queues and the addresses of the brokers that hold them."""

    write_queues: tuple[MessageQueue, ...]
    """Queues that may be sent to, brokers interleaved; only those whose broker has a master now."""
    read_queues: tuple[MessageQueue, ...]
    """Queues that may be read, in their order."""
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name -> broker id (0 is the master) -> ``host:port``."""

    def master(self, broker_name: str) -> str | None:
        """Address of a broker's master; None while it has none."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def replica(self, broker_name: str, preferred_id: int = MASTER_ID) -> str | None:
        """Address to read from: the preferred replica's, else the master's, else any; None without one."""
        addresses = self.brokers.get(broker_name, {})
        address = addresses.get(preferred_id) or addresses.get(MASTER_ID)
        return address or next(iter(addresses.values()), None)

    def addresses(self) -> set[str]:
        return {address for group in self.brokers.values() for address in group.values()}


def parse_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """A route from what the name server said of ``topic``, or of one that stands in for it (TBW102)."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    write: list[list[MessageQueue]] = []
    read: list[MessageQueue] = []
    for queues in sorted(data.queue_datas, key=lambda item: item.broker_name):
        name = queues.broker_name
        if queues.perm & Perm.READ:
            read += [MessageQueue(topic, name, number) for number in range(queues.read_queue_nums)]
        if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(name, {}):
            write.append([MessageQueue(topic, name, number) for number in range(queues.write_queue_nums)])
    return TopicRoute(_interleaved(write), tuple(read), brokers)


def _interleaved(groups: list[list[MessageQueue]]) -> tuple[MessageQueue, ...]:
    """One of each broker in turn, so that going round spreads the load."""
    longest = max(map(len, groups), default=0)
    return tuple(group[number] for number in range(longest) for group in groups if number < len(group))


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
            if queue.broker_name != avoid and not self.is_faulty(queue.broker_name, now_ms):
                self._next[topic] = number + step + 1
                return queue
            if fallback is None and queue.broker_name != avoid:
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


def vanished_masters(old: TopicRoute, new: TopicRoute) -> set[str]:
    """Addresses that were a master's and now belong to nobody, while another replica is master.

    What is in flight to them will hardly be answered.
    """
    gone: set[str] = set()
    addresses = new.addresses()
    for name in old.brokers:
        before, after = old.master(name), new.master(name)
        if before and after and before != after and before not in addresses:
            gone.add(before)
    return gone


def split_addresses(namesrv: str | Iterable[str]) -> list[str]:
    """``"a:9876;b:9876"``, or a list of addresses, as a list without repetitions.

    Raises:
        ValueError: there is no address, or one is not ``host:port``.
    """
    parts = namesrv.replace(",", ";").split(";") if isinstance(namesrv, str) else list(namesrv)
    addresses = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not addresses:
        raise ValueError("no name server address was given (expected host:port, several joined by ';')")
    for address in addresses:
        try:
            split_address(address)
        except NetError:
            raise ValueError(
                f"name server address {address!r}: expected host:port, such as 127.0.0.1:9876"
            ) from None
    return addresses
