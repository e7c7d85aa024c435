"""A broker's controllers: their addresses, which of them is leader, and calls to the leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from typing import TYPE_CHECKING, Final

import msgspec

from batonmq.common.addresses import split_addresses
from batonmq.net.connection import Response
from batonmq.net.errors import NetError
from batonmq.protocol.bodies import controller as bodies
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, NotLeaderError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import decode
from batonmq.protocol.registry import Header

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 3_000
FIND_TIMEOUT_MS: Final = 1_000
RETRY_S: Final = (0.1, 1.0)
"""First and longest wait of a caller between failed attempts; the wait doubles each time."""


class Controllers:
    """The configured controllers and those that joined later: each of them may become leader."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._controller_addr = broker.settings.broker.controller_addr
        self._known = self._configured
        self._leader: str | None = None
        self._finding: asyncio.Task[str] | None = None

    async def stop(self) -> None:
        """Cancel the search for the leader."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)

    @property
    def addresses(self) -> list[str]:
        """Addresses of all known controllers."""
        self._follow_configuration()
        return self._known

    @property
    def _configured(self) -> list[str]:
        return split_addresses(self._controller_addr)

    def _follow_configuration(self) -> None:
        """Apply a change of controllerAddr: all facts from the former controllers are dropped."""
        configured = self._broker.settings.broker.controller_addr
        if configured != self._controller_addr:
            self._controller_addr = configured
            self._known = self._configured
            self._leader = self._finding = None

    def _require_unchanged(self, asked: str) -> None:
        """Raises `NotLeaderError` if controllerAddr is no longer `asked`."""
        self._follow_configuration()
        if self._controller_addr != asked:
            raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "there are other controllers now")

    async def _find_leader(self) -> str:
        """Ask all controllers for the leader and use the first answer. Raises `MQError` if none knows it."""
        self._follow_configuration()
        asked = self._controller_addr
        leader = await self._first_leader(asked)
        self._require_unchanged(asked)
        if leader != self._leader:
            log.info("leading controller is %s", leader)
            self._leader = leader
        return leader

    async def _first_leader(self, asked: str) -> str:
        async def ask(address: str) -> str:
            response = await self._broker.client.call(address, wire.GetMetadata(), timeout_ms=FIND_TIMEOUT_MS)
            header = response.header
            self._require_unchanged(asked)
            if not isinstance(header, wire.GetMetadataReply) or not header.controller_leader_address:
                raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, f"{address} knows no leader")
            self._update_controllers(header)
            return header.controller_leader_address

        asking = [asyncio.ensure_future(ask(address)) for address in self._known]
        reasons: list[str] = []
        try:
            for earliest in asyncio.as_completed(asking):
                try:
                    return await earliest
                except NetError as error:
                    reasons.append(str(error))
                except MQError as error:
                    reasons.append(error.remark)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise NotLeaderError(
            ResponseCode.CONTROLLER_NOT_LEADER,
            f"no controller of controllerAddr leads ({'; '.join(sorted(set(reasons)))})",
        )

    def _update_controllers(self, metadata: wire.GetMetadataReply) -> None:
        """Controllers may be added and replaced while brokers run; each needs the brokers' heartbeats.

        The configured addresses stay in the list: such a controller may return under the same address.
        """
        known = list(dict.fromkeys([*self._configured, *members_of(metadata)]))
        if known != self._known:
            log.info("controllers are now %s", ", ".join(known))
            self._known = known

    async def _leader_address(self) -> str:
        self._follow_configuration()
        if self._leader is None:
            if self._finding is None or self._finding.done():
                self._finding = asyncio.get_running_loop().create_task(self._find_leader())
            return await asyncio.shield(self._finding)
        return self._leader

    async def call(
        self, header: Header, body: bytes = b"", *, accept: Container[int] = (ResponseCode.SUCCESS,)
    ) -> Response:
        """Call the leading controller. Raises `NetError`, `MQError`; the next call searches again."""
        leader = await self._leader_address()
        try:
            return await self._broker.client.call(
                leader, header, body, timeout_ms=CALL_TIMEOUT_MS, accept=accept
            )
        except (NetError, NotLeaderError):
            if self._leader == leader:
                self._leader = None
            raise

    async def watch(self) -> None:
        """Ask for the leader every `syncControllerMetadataPeriod`."""
        while True:
            await asyncio.sleep(self._broker.settings.broker.sync_controller_metadata_period / 1000)
            try:
                await self._find_leader()
            except (NetError, MQError) as error:
                log.debug("no leading controller: %s", error)

    async def broker_set(self) -> bodies.ReplicasInfo:
        """All replicas of this broker set. Raises `NetError`, `MQError`, ValueError."""
        name = self._broker.settings.broker.broker_name
        response = await self.call(wire.GetSyncStateData(), msgspec.json.encode([name]))
        table = decode(bytes(response.body), bodies.BrokerReplicasInfo).replicas_info_table
        return table.get(name, bodies.ReplicasInfo([], []))


def members_of(metadata: wire.GetMetadataReply) -> list[str]:
    """The addresses at which the controllers serve brokers; empty if the leader's address is not among them:
    RocketMQ's jRaft controllers report their Raft ports, which do not serve brokers."""
    peers = [peer.split(":") for peer in metadata.peers.split(";")]
    addresses = [":".join(parts[-2:]) for parts in peers if len(parts) >= 2]
    return addresses if metadata.controller_leader_address in addresses else []
