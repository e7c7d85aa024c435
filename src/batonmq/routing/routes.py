"""The route of a topic: where its queues are, as a name server describes it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import ClusterInfo, QueueData, TopicRouteData
from batonmq.protocol.codes import MASTER_ID, Perm
from batonmq.routing.static_topics import logical_queues


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's queues and the addresses of the brokers that hold them."""

    write_queues: tuple[MessageQueue, ...]
    """Queues that may be sent to, brokers interleaved; only those whose broker has a master now."""
    read_queues: tuple[MessageQueue, ...]
    """Queues that may be read, in their order."""
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name -> broker id (0 is the master) -> ``host:port``."""
    read_only: bool = False
    """The topic's permission forbids sending on all brokers. False while that may be due to a slave that acts
    as master: name servers hide the permission until the master is back."""
    leaders: Mapping[MessageQueue, str] = field(default_factory=dict)
    """Static topics: logical queue -> name of the broker that leads it, empty while none does."""

    @property
    def is_static(self) -> bool:
        """Whether the topic has logical queues, which move between brokers."""
        return bool(self.leaders)

    @property
    def key_queues(self) -> tuple[MessageQueue, ...]:
        """The queues among which keys are distributed: of a static topic all, so that a key keeps its queue
        while no broker leads some of them."""
        return self.read_queues if self.leaders else self.write_queues

    def broker_of(self, queue: MessageQueue) -> str:
        """Name of the broker that serves a queue; empty while none does. The name in a logical queue itself
        is not a broker's."""
        return self.leaders.get(queue, "") if self.leaders else queue.broker_name

    def master(self, broker_name: str) -> str | None:
        """Address of a broker's master; None while it has none."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def slaves(self, broker_name: str) -> list[str]:
        """Addresses of a broker's slaves, by their ids."""
        addresses = self.brokers.get(broker_name, {})
        return [addresses[number] for number in sorted(addresses) if number != MASTER_ID]

    def replica(self, broker_name: str, preferred_id: int = MASTER_ID) -> str | None:
        """Address to read from: the preferred replica's, else the master's, else that of the slave with the
        smallest id; None without one."""
        addresses = self.brokers.get(broker_name, {})
        address = addresses.get(preferred_id) or addresses.get(MASTER_ID)
        return address or (addresses[min(addresses)] if addresses else None)

    def addresses(self) -> set[str]:
        return {address for group in self.brokers.values() for address in group.values()}


def parse_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """The route of ``topic`` from a name server's answer about it, or about its template (TBW102).

    All logical queues of a static topic are read, also those without a leader and whatever the permissions:
    the clients of a group must see the same queues, and Java's see these.
    """
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    write: list[list[MessageQueue]] = []
    read: list[MessageQueue] = []
    for queues in sorted(data.queue_datas, key=lambda item: item.broker_name):
        name = queues.broker_name
        if queues.perm & Perm.READ:
            read += [MessageQueue(topic, name, number) for number in range(queues.read_queue_nums)]
        if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(name, {}):
            write.append([MessageQueue(topic, name, number) for number in range(queues.write_queue_nums)])
    acting = any(broker.enable_acting_master for broker in data.broker_datas)
    forbidden = bool(data.queue_datas) and not any(item.perm & Perm.WRITE for item in data.queue_datas)
    read_only = forbidden and not acting
    if not data.topic_queue_mapping_by_broker:
        return TopicRoute(_interleaved(write), tuple(read), brokers, read_only)
    leaders = logical_queues(topic, data.topic_queue_mapping_by_broker.values())
    writable = {queues[0].broker_name for queues in write if queues}
    led = tuple(queue for queue, leader in leaders.items() if leader in writable)
    return TopicRoute(led, tuple(leaders), brokers, read_only, leaders)


def light_route(info: ClusterInfo) -> TopicRouteData:
    """The route of every light queue, which name servers do not know: any broker may have it."""
    brokers = [info.broker_addr_table[name] for name in sorted(info.broker_addr_table)]
    queues = [QueueData(broker.broker_name, 1, 1, Perm.READ) for broker in brokers]
    return TopicRouteData(broker_datas=brokers, queue_datas=queues)


def _interleaved(groups: list[list[MessageQueue]]) -> tuple[MessageQueue, ...]:
    """One of each broker in turn, so that going round spreads the load."""
    longest = max(map(len, groups), default=0)
    return tuple(group[number] for number in range(longest) for group in groups if number < len(group))


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
