"""The members of a broker set, for a broker that is not registered yet."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from batonmq.broker.acting.polling import MemberPolling
from batonmq.broker.replica.slave_sync import RemoteMaster
from batonmq.common.addresses import split_addresses
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from batonmq.broker.context import Broker
    from batonmq.net.client import RemotingClient

log = logging.getLogger(__name__)


class RemoteMember(RemoteMaster):
    """A replica that was alive while this master was away (`persistence.Member`)."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        super().__init__(client, address)
        self.acted = False
        self.linked = False
        self.taken = False
        """Whether this master has copied its newer tables."""


async def ask_name_servers(broker: Broker, polling: MemberPolling) -> Mapping[int, str] | None:
    """The members that any name server lists, including this broker if it is still listed. None: no name
    server answers. Empty if none is configured.
    """
    servers = split_addresses(broker.settings.broker.namesrv_addr)

    async def ask(server: str) -> Mapping[int, str] | None:
        try:
            return await polling.ask(server)
        except (NetError, MQError) as error:
            log.debug("members of the broker set are unknown: %s", error)
            return None

    answers = [found for found in await asyncio.gather(*map(ask, servers)) if found is not None]
    if servers and not answers:
        return None
    members: dict[int, str] = {}
    for found in answers:
        for broker_id, address in found.items():
            members.setdefault(broker_id, address)
    return members
