"""Whether a replica is there: the leading controller asks it over a connection of its own."""

from __future__ import annotations

import logging

from batonmq.controller.replicas import BrokerSet
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import encode

log = logging.getLogger(__name__)


async def answers(client: RemotingClient, broker_set: BrokerSet, broker_id: int, timeout_ms: int) -> bool:
    """Whether the replica answers within `timeout_ms`, whatever it says. The request is the notice of its
    master, and repeats what it should know."""
    address = broker_set.address(broker_id)
    if address is None:
        return False
    notice = wire.NotifyBrokerRoleChanged(
        broker_set.master_address,
        broker_set.master_epoch,
        broker_set.sync_state_set_epoch,
        broker_set.master_id,
    )
    body = encode(SyncStateSetBody(broker_set.sync_state_set, broker_set.sync_state_set_epoch))
    try:
        await client.call(address, notice, body, timeout_ms=timeout_ms)
    except MQError:
        return True
    except NetError as error:
        log.debug("replica %d of %s at %s: %s", broker_id, broker_set.broker_name, address, error)
        return False
    return True
