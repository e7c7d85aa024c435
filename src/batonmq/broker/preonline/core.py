"""Which slaves follow a master that returns, as far as it can tell. Pure.

The stream of replication without controllers does not name the slave. RocketMQ compares the host of a link
with the address under which the slave is registered, and waits for ever if `brokerIP2` is another one. Here a
slave of ours says from where it is linked. Other slaves get what links remain: those from their host first,
then any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """What a slave said when the master announced itself."""

    follows: str | None
    """The replication port that it follows, past the handshake; empty: none. None: RocketMQ does not say."""
    linked_from: str
    """Its end of that connection, ``ip:port``."""


def linked(members: Mapping[int, str], answers: Mapping[int, Answer], links: Iterable[str]) -> set[int]:
    """The members that follow this master.

    `members`: broker ids and client addresses. `links`: the other ends of its links past the handshake,
    ``ip:port``.
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
            # Behind an address translation a slave's end has another name here.
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
