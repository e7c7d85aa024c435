"""Replication: who is master and in sync, as the controllers decided and as the brokers see it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from batonmq.admin.operations import brokers
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from batonmq.protocol.bodies.replication import EpochEntry, EpochEntryCache, HARuntimeInfo
from batonmq.protocol.codes import MASTER_ID
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as controller_wire
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import decode

_NO_CONTROLLERS: Final = "this request only for controllerMode"
"""What brokers without controllers answer, RocketMQ's too. The code is that of an internal error."""
_ACTIVE: Final = "brokerActive"
"""Figure of a broker: whether it does a master's work. A slave for which it is true acts as master."""


@dataclass(frozen=True, slots=True)
class BrokerReplication:
    """Replication as one broker sees it, with what its HA status does not say."""

    info: HARuntimeInfo
    acts: bool
    """It is a slave that acts as master."""
    total_replicas: int
    """As this master is configured; 0 if unknown."""


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


async def status(admin: Admin, addresses: Iterable[str]) -> dict[str, BrokerReplication]:
    """Broker address -> a master's view of its slaves, or a slave's link to its master."""
    found: dict[str, BrokerReplication] = {}
    for address in addresses:
        answer = await admin.ask(address, wire.GetBrokerHAStatus())
        info = decode(bytes(answer.body), HARuntimeInfo)
        acts, total = False, 0
        # Access control may permit the status and not these.
        with contextlib.suppress(MQError, ValueError):
            if info.master:
                total = int((await brokers.configs(admin, [address]))[address].get("totalReplicas", "0"))
            else:
                acts = (await brokers.figures(admin, [address]))[address].get(_ACTIVE) == "true"
        found[address] = BrokerReplication(info, acts, total)
    return found


async def epochs(
    admin: Admin, cluster: str | None = None, name: str | None = None, *, address: str | None = None
) -> list[BrokerEpochs]:
    """The epochs of all live brokers of a cluster, of a broker set, of the broker at an address, or of all.

    Brokers that run without controllers have none and are left out. Raises `AdminError` if all are such, or
    if no broker of that name is registered.
    """
    if address is not None:
        asked = [("", MASTER_ID, address)]
    else:
        asked = await admin.replicas(cluster)
        if name is not None and name not in (broker_name for broker_name, _, _ in asked):
            raise AdminError(f"no broker {name} is registered{f' in cluster {cluster}' if cluster else ''}")
    found: list[BrokerEpochs] = []
    without: list[str] = []
    for broker_name, broker_id, at in asked:
        if name not in (None, broker_name):
            continue
        try:
            answer = await admin.ask(at, wire.GetBrokerEpochCache())
        except MQError as error:
            if _NO_CONTROLLERS not in error.remark:
                raise
            without.append(f"{broker_name} {at}".strip())
            continue
        cache = decode(bytes(answer.body), EpochEntryCache)
        entries = [
            EpochEntry(entry.epoch, entry.start_offset, min(entry.end_offset, cache.max_offset))
            for entry in cache.epoch_list
        ]
        known_as = broker_name or cache.broker_name
        found.append(BrokerEpochs(known_as, cache.broker_id or broker_id, at, entries))
    if without and not found:
        raise AdminError(
            "only brokers with controllers (enableControllerMode=true) have master epochs; "
            f'{", ".join(without)} answered "{_NO_CONTROLLERS}"'
        )
    return found


async def reset_master_flush_offset(admin: Admin, slave: str, offset: int) -> None:
    """Set what a slave takes for its master's flushed offset."""
    await admin.ask(slave, wire.ResetMasterFlushOffset(master_flush_offset=offset))
