"""Decides for a client of a group which queues it consumes. No I/O.

Source: RocketMQ's `QueryAssignmentProcessor`, `AllocateMessageQueueAveragely` and
`AllocateMessageQueueAveragelyByCircle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batonmq.protocol.bodies.common import MessageQueue

AVERAGELY = "AVG"
BY_CIRCLE = "AVG_BY_CIRCLE"
STRATEGIES = (AVERAGELY, BY_CIRCLE)


def allocate(
    strategy: str, client_id: str, clients: Iterable[str], queues: Iterable[MessageQueue]
) -> list[MessageQueue]:
    """The share of a client under pull. Empty for a client that is not in the group. Raises `KeyError` for an
    unknown strategy."""
    ordered, members = sorted(queues), _sorted_clients(clients)
    if client_id not in members:
        return []
    index, count = members.index(client_id), len(members)
    if strategy == BY_CIRCLE:
        return ordered[index::count]
    if strategy != AVERAGELY:
        raise KeyError(strategy)
    size, more = divmod(len(ordered), count)
    begin = index * size + min(index, more)
    return ordered[begin : begin + size + (1 if index < more else 0)]


def allocate_for_pop(
    strategy: str,
    client_id: str,
    clients: Iterable[str],
    queues: Sequence[MessageQueue],
    share_with: int,
) -> list[MessageQueue]:
    """The queues that a client pops.

    `share_with` (`popShareQueueNum`): the client also pops the shares of so many clients that follow it. At 0
    or below, or with few clients, it pops every queue: one entry with queue id -1 for each broker.
    """
    members = _sorted_clients(clients)
    if share_with <= 0 or share_with >= len(members) - 1:
        return sorted({MessageQueue(each.topic, each.broker_name, -1) for each in queues})
    if client_id not in members:
        return []
    index = members.index(client_id)
    if len(members) > len(queues):
        return [sorted(queues)[index % len(queues)]] if queues else []
    allocated: dict[MessageQueue, None] = {}
    for n in range(share_with + 1):
        member = members[(index + n) % len(members)]
        allocated.update(dict.fromkeys(allocate(strategy, member, members, queues)))
    return list(allocated)


def _sorted_clients(clients: Iterable[str]) -> list[str]:
    """Java compares strings by UTF-16 units."""
    return sorted(set(clients), key=lambda text: text.encode("utf-16-be", "surrogatepass"))
