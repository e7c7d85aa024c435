"""Whether a replica is there: the leading controller asks it over a connection of its own."""

from __future__ import annotations

import logging

from batonmq.controller.notices import notice
from batonmq.controller.replicas import BrokerSet
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)


async def answers(client: RemotingClient, broker_set: BrokerSet, broker_id: int, timeout_ms: int) -> bool:
    """Whether the replica answers within `timeout_ms`, whatever it says. The request is the notice of its
    master, and repeats what it should know."""
    address = broker_set.address(broker_id)
    if address is None:
        return False
    header, body = notice(broker_set)
    try:
        await client.call(address, header, body, timeout_ms=timeout_ms)
    except MQError:
        return True
    except NetError as error:
        log.debug("replica %d of %s at %s: %s", broker_id, broker_set.broker_name, address, error)
        return False
    return True
