"""Replication: who is master and in sync, as the controllers decided and as the brokers see it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from batonmq.protocol.bodies.replication import EpochEntry, EpochEntryCache, HARuntimeInfo
from batonmq.protocol.headers import controller as controller_wire
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import decode


@dataclass(frozen=True, slots=True)
class BrokerEpochs:
    """The master epochs in one broker's commit log."""

    broker: str
    """Broker name."""
    broker_id: int
    """As the controllers gave it; as in the route where the broker has none."""
    address: str
    entries: list[EpochEntry]
    """Oldest first; `end_offset` of the last is where the log ends."""


async def replicas(admin: Admin, controllers: str, names: Collection[str]) -> dict[str, ReplicasInfo]:
    """Broker name -> master, replicas and SyncStateSet; only of those that the controllers know."""
    leader = await admin.leading_controller(controllers)
    answer = await admin.ask(leader, controller_wire.GetSyncStateData(), msgspec.json.encode(list(names)))
    return decode(bytes(answer.body), BrokerReplicasInfo).replicas_info_table


async def elect(
    admin: Admin, controllers: str, cluster: str, name: str, broker_id: int
) -> controller_wire.ElectMasterReply:
    """Make a replica, alive and in the SyncStateSet, the master of the broker set `name`.

    Controllers do not look at `cluster`.
    """
    header = controller_wire.ElectMaster(
        cluster_name=cluster, broker_name=name, broker_id=broker_id, designate_elect=True
    )
    answer = await admin.ask(await admin.leading_controller(controllers), header)
    assert isinstance(answer.header, controller_wire.ElectMasterReply)
    return answer.header


async def forget(
    admin: Admin,
    controllers: str,
    name: str,
    *,
    cluster: str | None = None,
    broker_ids: str | None = None,
    living: bool = False,
) -> None:
    """Let the controllers forget replicas of the broker set `name`.

    Args:
        cluster: not looked at by controllers.
        broker_ids: ``1;2``; None: all.
        living: also replicas that are alive.
    """
    header = controller_wire.CleanBrokerData(
        broker_name=name,
        cluster_name=cluster,
        broker_controller_ids_to_clean=broker_ids,
        is_clean_living_broker=living,
    )
    await admin.ask(await admin.leading_controller(controllers), header)


async def status(admin: Admin, addresses: Iterable[str]) -> dict[str, HARuntimeInfo]:
    """Broker address -> a master's view of its slaves, or a slave's link to its master."""
    found: dict[str, HARuntimeInfo] = {}
    for address in addresses:
        answer = await admin.ask(address, wire.GetBrokerHAStatus())
        found[address] = decode(bytes(answer.body), HARuntimeInfo)
    return found


async def epochs(admin: Admin, cluster: str | None = None, name: str | None = None) -> list[BrokerEpochs]:
    """The epochs of all live brokers of a cluster, of a broker set, or of all.

    Raises `AdminError` if no broker of that name is registered.
    """
    brokers = await admin.replicas(cluster)
    if name is not None and name not in (broker_name for broker_name, _, _ in brokers):
        raise AdminError(f"no broker {name} is registered{f' in cluster {cluster}' if cluster else ''}")
    found: list[BrokerEpochs] = []
    for broker_name, broker_id, address in brokers:
        if name not in (None, broker_name):
            continue
        answer = await admin.ask(address, wire.GetBrokerEpochCache())
        cache = decode(bytes(answer.body), EpochEntryCache)
        entries = [
            EpochEntry(entry.epoch, entry.start_offset, min(entry.end_offset, cache.max_offset))
            for entry in cache.epoch_list
        ]
        found.append(BrokerEpochs(broker_name, cache.broker_id or broker_id, address, entries))
    return found
