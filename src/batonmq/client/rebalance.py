"""Divides queues among the clients of a group, as Java's AVG strategy does, so that groups may be mixed."""

from __future__ import annotations

from collections.abc import Iterable

from batonmq.protocol.bodies.common import MessageQueue


def allocate_averagely(
    client_id: str, clients: Iterable[str], queues: Iterable[MessageQueue]
) -> list[MessageQueue]:
    """This client's share: both lists sorted, each client one contiguous run, longer ones first.

    Empty for a client that is not (yet) among ``clients``.
    """
    ordered = sorted(queues)
    members = sorted(clients, key=_java_order)
    if client_id not in members:
        return []
    index = members.index(client_id)
    size, more = divmod(len(ordered), len(members))
    begin = index * size + min(index, more)
    return ordered[begin : begin + size + (1 if index < more else 0)]


def _java_order(text: str) -> bytes:
    """Java compares strings by UTF-16 units."""
    return text.encode("utf-16-be")
