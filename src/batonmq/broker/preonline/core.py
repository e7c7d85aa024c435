"""Finds the slaves that replicate from a master that returns. No I/O.

The stream of replication without controllers does not name the slave. RocketMQ compares the host of a link
with the slave's registered address, and waits for ever if the slave connects from another one (`brokerIP2`).
BatonMQ's slaves report the address of their link. The remaining links are matched to the other slaves: first
by host, then in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """A slave's answer to the master's announcement."""

    follows: str | None
    """The replication address that it replicates from, after the handshake; empty: none. None: a RocketMQ
    slave, which does not report it."""
    linked_from: str
    """The slave's end of that connection, ``ip:port``."""


def linked(members: Mapping[int, str], answers: Mapping[int, Answer], links: Iterable[str]) -> set[int]:
    """The members that replicate from this master.

    `members`: broker ids and client addresses. `links`: the slaves' ends of this master's links after the
    handshake, ``ip:port``.
    """
    left = list(links)
    found: set[int] = set()
    waiting: list[int] = []
    for broker_id in sorted(members):
        answer = answers.get(broker_id)
        if answer is None:
            continue
        if answer.linked_from in left and answer.follows:
            left.remove(answer.linked_from)
            found.add(broker_id)
        elif answer.follows is None or answer.follows:
            # Behind address translation the slave's end has another address here.
            waiting.append(broker_id)
    for same_host in (True, False):
        for broker_id in list(waiting):
            host = _host(members[broker_id])
            link = next((each for each in left if not same_host or _host(each) == host), None)
            if link is not None:
                left.remove(link)
                waiting.remove(broker_id)
                found.add(broker_id)
    return found


def _host(address: str) -> str:
    return address.rpartition(":")[0]
