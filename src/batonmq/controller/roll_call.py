"""Asks the slaves that may replace a master whether they are there.

Whoever is elected is alone in the SyncStateSet. If that replica has failed together with the master, because
they share a machine, a rack or a network, nobody else may follow it, although others have every acknowledged
message. Its last heartbeat does not tell: it may have come a moment before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from batonmq.controller.events import NO_BROKER
from batonmq.controller.probe import answers
from batonmq.controller.replicas import BrokerSet
from batonmq.net.client import RemotingClient

log = logging.getLogger(__name__)

ANSWER_MS: Final = 50
"""A slave that has not answered by then is passed over if another one has. An election waits no longer."""


def candidates(broker_set: BrokerSet) -> list[int]:
    """Slaves in sync that are not known to be down."""
    return [
        broker_id
        for broker_id in broker_set.sync_state_set
        if broker_id != broker_set.master_id and broker_id in broker_set.live
    ]


def needed(broker_set: BrokerSet) -> bool:
    """Whether there is a choice."""
    return len(candidates(broker_set)) > 1


async def absent(
    client: RemotingClient, broker_sets: Iterable[BrokerSet], reporter_id: int, now_ms: Callable[[], int]
) -> list[tuple[BrokerSet, int, int]]:
    """(broker set, broker id, session of its last heartbeat) of slaves in sync that do not answer, though
    another one of their set does. `reporter_id` is a slave that lives. `now_ms`: the leader's time."""
    found = await asyncio.gather(*(_absent(client, each, reporter_id, now_ms) for each in broker_sets))
    return [each for those in found for each in those]


async def _absent(
    client: RemotingClient, broker_set: BrokerSet, reporter_id: int, now_ms: Callable[[], int]
) -> list[tuple[BrokerSet, int, int]]:
    asked = {
        broker_id: broker_set.live[broker_id]
        for broker_id in candidates(broker_set)
        if broker_id != reporter_id
    }
    answered = await asyncio.gather(*(answers(client, broker_set, each, ANSWER_MS) for each in asked))
    present = {broker_id for broker_id, there in zip(asked, answered, strict=True) if there}
    if not present and reporter_id == NO_BROKER:
        # Another controller may pass on the heartbeats of a slave that the leader does not reach.
        now = now_ms()
        present = {
            broker_id for broker_id, live in asked.items() if now - live.updated_ms <= live.timeout_ms // 2
        }
        if not present:
            return []
    silent = [
        (broker_set, broker_id, live.session) for broker_id, live in asked.items() if broker_id not in present
    ]
    for _, broker_id, _ in silent:
        log.warning("replica %d of %s does not answer: it is not elected", broker_id, broker_set.broker_name)
        address = broker_set.address(broker_id)
        if address is not None:
            client.drop(address)  # if the path was cut, TCP would retry only seldom once it works again
    return silent
