"""The tables of a name server: addresses of brokers, queues of topics, and which brokers are alive.

`RouteTable` decides and remembers; it opens nothing and reads no clock. Times are monotonic milliseconds that
the caller passes in; a connection is any object, compared by identity. Messages to
brokers are returned as `Notice`, and the caller sends them.

Comments name the rules of Apache RocketMQ's `RouteInfoManager` that are easy to miss. Names with `group` mean
a broker set, as in RocketMQ's `BrokerMemberGroup`. The *prime slave* of a broker set without a master is its
live slave with the lowest id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass

import msgspec

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from batonmq.protocol.bodies.topics import RegisterBrokerBody, TopicConfig
from batonmq.protocol.codes import MASTER_ID, Perm, ResponseCode, TopicSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange
from batonmq.protocol.headers.namesrv import RegisterBroker, UnregisterBroker

log = logging.getLogger(__name__)

DEFAULT_BROKER_TIMEOUT_MS = 120_000
"""Silence after which a broker counts as gone, if it named no other timeout."""
MEMBER_GROUP_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics brokers use among themselves; their routes never show an acting master."""


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """Identity of one broker process's registration."""

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """What is known of a registered broker besides its place in a broker set. Times in ms."""

    last_seen_ms: int
    timeout_ms: int
    data_version: DataVersion
    connection: object
    ha_address: str


@dataclass(frozen=True, slots=True)
class Notice:
    """To be sent to these broker addresses: the lowest live id of their broker set changed."""

    addresses: tuple[str, ...]
    header: NotifyMinBrokerIdChange


@dataclass(frozen=True, slots=True)
class Registered:
    """Answer to a registration: where the master is (for a slave), the notice to send, and when the broker is
    to be forgotten if it stays silent (monotonic ms; None if it was not registered)."""

    ha_address: str | None = None
    master_address: str | None = None
    notice: Notice | None = None
    expires_ms: int | None = None


class RouteTable:
    """All routes of one name server."""

    def __init__(
        self,
        *,
        support_acting_master: bool = False,
        notify_min_broker_id: bool = False,
        delete_absent_topics: bool = False,
    ) -> None:
        self.support_acting_master = support_acting_master
        self.notify_min_broker_id = notify_min_broker_id
        self.delete_absent_topics = delete_absent_topics
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}

    # -- registration --------------------------------------------------------------------------------------

    def register(
        self,
        broker: RegisterBroker,
        body: RegisterBrokerBody,
        connection: object,
        now_ms: int,
        *,
        zone: str | None = None,
    ) -> Registered:
        """Register a broker and, from a master or prime slave, its topics.

        Raises `MQError` (SYSTEM_ERROR) if a broker registers one single topic before it has registered
        itself: that would make all its other topics look deleted.
        """
        name, broker_id, address = broker.broker_name, broker.broker_id, broker.broker_addr
        key = BrokerKey(broker.cluster_name, address)
        wrapper = body.topic_config_serialize_wrapper
        version = wrapper.data_version
        group = self._groups.get(name)
        first = group is None
        if len(wrapper.topic_config_table) == 1 and (group is None or broker_id not in group.broker_addrs):
            raise MQError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        self._clusters.setdefault(broker.cluster_name, {})[name] = None
        if group is None:
            group = self._groups[name] = BrokerData(broker.cluster_name, name)
        # A broker that is too old for acting masters does not take part in them.
        knows_acting_master = broker.enable_acting_master is not None
        group.enable_acting_master = bool(broker.enable_acting_master)
        group.zone_name = zone
        members = group.broker_addrs
        min_id_changed = broker_id < (min(members) if members else MASTER_ID)

        # One address has one id: a slave that became master leaves its old id.
        for other_id in [i for i, other in members.items() if other == address and i != broker_id]:
            del members[other_id]
        holder = members.get(broker_id)
        if holder is not None and holder != address and not self._takes_id(broker, version, holder):
            self._live.pop(key, None)
            return Registered()
        members[broker_id] = address
        first = first or not holder

        prime_slave = knows_acting_master and broker_id != MASTER_ID and broker_id == min(members)
        if broker_id == MASTER_ID or prime_slave:
            self._take_topics(key, group, body, first, read_only=prime_slave and group.enable_acting_master)
        if key not in self._live:
            log.info("broker %s id=%d of %s registered from %s", name, broker_id, *(key.cluster, address))
        timeout_ms = broker.heartbeat_timeout_millis
        if timeout_ms is None:
            timeout_ms = DEFAULT_BROKER_TIMEOUT_MS
        self._live[key] = LiveBroker(now_ms, timeout_ms, version, connection, broker.ha_server_addr)
        if body.filter_server_list:
            self._filter_servers[key] = body.filter_server_list
        else:
            self._filter_servers.pop(key, None)

        ha_address = master_address = None
        if broker_id != MASTER_ID and MASTER_ID in members:
            master = self._live.get(BrokerKey(broker.cluster_name, members[MASTER_ID]))
            if master is not None:
                ha_address, master_address = master.ha_address, members[MASTER_ID]
        notice = None
        if min_id_changed and self.notify_min_broker_id:
            notice = _notice(group, offline=None, ha_address=broker.ha_server_addr)
        return Registered(ha_address, master_address, notice, now_ms + timeout_ms)

    def _takes_id(self, broker: RegisterBroker, version: DataVersion, holder: str) -> bool:
        """Whether a broker gets the id that the broker at `holder` has: of two master epochs (state versions)
        the later one keeps it."""
        holding = self._live.get(BrokerKey(broker.cluster_name, holder))
        if holding is None or holding.data_version.state_version < version.state_version:
            return True
        claim = broker.broker_addr, broker.broker_id, broker.broker_name
        if holding.data_version.state_version > version.state_version:
            log.warning(
                "%s claims id %d of %s with state version %d; %s holds it with %d and stays",
                *(*claim, version.state_version, holder, holding.data_version.state_version),
            )
            return False
        log.warning(
            "%s takes id %d of %s from %s, which is alive: if both run with brokerId=%d, clients "
            "reach the one that registered last",
            *(*claim, holder, broker.broker_id),
        )
        return True

    def _take_topics(
        self, key: BrokerKey, group: BrokerData, body: RegisterBrokerBody, first: bool, *, read_only: bool
    ) -> None:
        name = group.broker_name
        wrapper = body.topic_config_serialize_wrapper
        changed = first or self.data_version_changed(key, wrapper.data_version)
        topics = wrapper.topic_config_table
        mappings = wrapper.topic_queue_mapping_info_map
        if self.delete_absent_topics and not mappings:
            for topic in [t for t, queues in self._queues.items() if name in queues and t not in topics]:
                self._remove_queues(topic, name)
        for config in topics.values():
            if changed or name not in self._queues.get(config.topic_name, {}):
                self._put_queues(name, config, read_only)
        if changed:
            for topic in [each for each in self._mappings if each in topics and each not in mappings]:
                self._mappings[topic].pop(name, None)  # deleted there and created again
        for topic, mapping in mappings.items():
            # Keyed by the broker name in the mapping: another broker set may have handed the queue over.
            known = self._mappings.setdefault(topic, {})
            if changed or (mapping.bname or name) not in known:
                known[mapping.bname or name] = mapping

    def _put_queues(self, name: str, config: TopicConfig, read_only: bool) -> None:
        queues = QueueData(
            name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm & ~Perm.WRITE if read_only else config.perm,
            config.topic_sys_flag,
        )
        known = self._queues.setdefault(config.topic_name, {})
        if known.get(name) != queues:
            log.info("topic %s on %s: %s", config.topic_name, name, queues)
            known[name] = queues

    def _remove_queues(self, topic: str, name: str) -> None:
        queues = self._queues.get(topic)
        if queues is not None and queues.pop(name, None) is not None:
            log.info("topic %s no longer has queues on %s", topic, name)
            if not queues:
                del self._queues[topic]
                self._mappings.pop(topic, None)

    def seen(self, cluster: str, address: str, now_ms: int) -> None:
        """A heartbeat; ignored for a broker that is not registered."""
        live = self._live.get(BrokerKey(cluster, address))
        if live is not None:
            live.last_seen_ms = now_ms

    def data_version_changed(self, key: BrokerKey, version: DataVersion) -> bool:
        """Whether the broker's topics differ from those registered last."""
        return self.data_version(key) != version

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Version of the topics that a broker registered last."""
        live = self._live.get(key)
        return None if live is None else live.data_version

    # -- unregistration ------------------------------------------------------------------------------------

    def unregister(self, leaving: Iterable[UnregisterBroker]) -> list[Notice]:
        """Remove brokers. A broker set without brokers is removed with its queues; one that lost its master
        and has acting masters enabled becomes read-only. Returns the notices of a new lowest id."""
        gone: set[str] = set()
        reduced: set[str] = set()
        offline: dict[str, str] = {}
        for broker in leaving:
            key = BrokerKey(broker.cluster_name, broker.broker_addr)
            self._live.pop(key, None)
            self._filter_servers.pop(key, None)
            group = self._groups.get(broker.broker_name)
            if group is None:
                continue
            members = group.broker_addrs
            was_least = bool(members) and broker.broker_id == min(members)
            for member_id in [i for i, address in members.items() if address == broker.broker_addr]:
                del members[member_id]
            log.info(
                "broker %s id=%d of %s left, was at %s",
                *(broker.broker_name, broker.broker_id, broker.cluster_name, broker.broker_addr),
            )
            if not members:
                self._forget_group(broker.cluster_name, broker.broker_name)
                gone.add(broker.broker_name)
                reduced.discard(broker.broker_name)
                offline.pop(broker.broker_name, None)
            else:
                reduced.add(broker.broker_name)
                if was_least:
                    offline[broker.broker_name] = broker.broker_addr
        self._reduce_routes(gone, reduced)
        if not self.notify_min_broker_id:
            return []
        groups = ((self._groups[name], address) for name, address in offline.items())
        return [
            _notice(group, offline=address, ha_address=None)
            for group, address in groups
            if group.enable_acting_master
        ]

    def _forget_group(self, cluster: str, name: str) -> None:
        del self._groups[name]
        names = self._clusters.get(cluster)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._clusters[cluster]

    def _reduce_routes(self, gone: set[str], reduced: set[str]) -> None:
        read_only = {
            name
            for name in reduced
            if (group := self._groups[name]).enable_acting_master and min(group.broker_addrs) > MASTER_ID
        }
        if not gone and not read_only:
            return
        for topic in list(self._queues):
            for name in gone:
                self._remove_queues(topic, name)
            for name in read_only:
                queues = self._queues.get(topic, {}).get(name)
                if queues is not None:
                    queues.perm &= ~Perm.WRITE

    def expired(self, now_ms: int) -> list[BrokerKey]:
        """Brokers whose silence exceeds their own timeout."""
        return [key for key, live in self._live.items() if live.last_seen_ms + live.timeout_ms < now_ms]

    def next_expiry(self) -> int | None:
        """When the first broker is to be forgotten if all stay silent; monotonic ms."""
        return min((live.last_seen_ms + live.timeout_ms for live in self._live.values()), default=None)

    def on_connection(self, connection: object) -> list[BrokerKey]:
        """Brokers that registered last over this connection (a container has several on one)."""
        return [key for key, live in self._live.items() if live.connection is connection]

    def connection(self, key: BrokerKey) -> object:
        """The connection that a broker registered over last; None for an unknown one."""
        live = self._live.get(key)
        return None if live is None else live.connection

    def leaving(self, keys: Iterable[BrokerKey]) -> list[UnregisterBroker]:
        """The unregistration of brokers that cannot send it themselves."""
        requests: list[UnregisterBroker] = []
        for key in keys:
            place = next(
                (
                    (group.broker_name, broker_id)
                    for group in self._groups.values()
                    if group.cluster == key.cluster
                    for broker_id, address in group.broker_addrs.items()
                    if address == key.address
                ),
                None,
            )
            if place is not None:
                requests.append(UnregisterBroker(place[0], key.address, key.cluster, place[1]))
            else:
                self._live.pop(key, None)  # its id went to another address in the meantime
        return requests

    # -- routes --------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic's queues are; None if no live broker has any. The caller may change the result."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        groups = [_copy(self._groups[name]) for name in queues if name in self._groups]
        if not groups:
            return None
        route = TopicRouteData([copy(each) for each in queues.values()], groups)
        if self._filter_servers:
            for group in groups:
                for address in group.broker_addrs.values():
                    servers = self._filter_servers.get(BrokerKey(group.cluster, address))
                    if servers is not None:
                        route.filter_server_table[address] = servers
        mappings = self._mappings.get(topic, {})
        # Also those of brokers that are away: what they lead is not another broker's. But if no other has
        # one, they had a topic of that name before.
        if not mappings.keys().isdisjoint(queues):
            route.topic_queue_mapping_by_broker = mappings
        if self.support_acting_master and not topic.startswith(MEMBER_GROUP_TOPIC_PREFIX):
            for group in groups:
                self._show_acting_master(group, queues)
        return route

    @staticmethod
    def _show_acting_master(group: BrokerData, queues: dict[str, QueueData]) -> None:
        """Show the prime slave of a read-only broker set as its master (RIP-32)."""
        members = group.broker_addrs
        if not members or MASTER_ID in members or not group.enable_acting_master:
            return
        if not queues[group.broker_name].perm & Perm.WRITE:
            members[MASTER_ID] = members.pop(min(members))

    def cluster_info(self) -> ClusterInfo:
        """All broker sets and clusters."""
        return ClusterInfo(
            {name: _copy(group) for name, group in self._groups.items()},
            {cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, name: str) -> BrokerMemberGroup:
        """Live members of a broker set; an unknown one has none."""
        group = self._groups.get(name)
        return BrokerMemberGroup(cluster, name, dict(group.broker_addrs) if group is not None else {})

    # -- topics --------------------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Add a topic's queues; nothing changes when one of them is on an unknown broker."""
        unknown = [each.broker_name for each in queues if each.broker_name not in self._groups]
        if unknown:
            log.warning("topic %s not registered: unknown brokers %s", topic, ", ".join(unknown))
        elif queues:
            self._queues.setdefault(topic, {}).update({each.broker_name: each for each in queues})

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from the routes of one cluster or of all."""
        if not cluster:
            self._queues.pop(topic, None)
            self._mappings.pop(topic, None)
            return
        for name in self._clusters.get(cluster, {}):
            self._mappings.get(topic, {}).pop(name, None)
            self._remove_queues(topic, name)

    def set_writable(self, name: str, writable: bool) -> int:
        """Grant or remove the write permission of a broker set's queues; returns the number of topics."""
        count = 0
        for queues in self._queues.values():
            data = queues.get(name)
            if data is not None:
                data.perm = Perm.READ | Perm.WRITE if writable else data.perm & ~Perm.WRITE
                count += 1
        return count

    def topics(self) -> list[str]:
        """Names of all topics."""
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with queues on some broker set of the cluster."""
        names = self._clusters.get(cluster, {})
        return [topic for topic, queues in self._queues.items() if not names.keys().isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and broker sets (each is a topic too), and the address of some broker."""
        names = [part for cluster, groups in self._clusters.items() for part in (cluster, *groups)]
        addresses = (address for group in self._groups.values() for address in group.broker_addrs.values())
        return list(dict.fromkeys(names)), next(addresses, None)

    def unit_topics(self) -> list[str]:
        """Topics with the unit flag."""
        return self._flagged(lambda flag: bool(flag & TopicSysFlag.UNIT))

    def unit_subscribed_topics(self, *, without_unit: bool = False) -> list[str]:
        """Topics with the unit subscription flag, with or without those that have the unit flag."""
        return self._flagged(
            lambda flag: (
                bool(flag & TopicSysFlag.UNIT_SUB) and not (without_unit and flag & TopicSysFlag.UNIT)
            )
        )

    def _flagged(self, wanted: Callable[[int], bool]) -> list[str]:
        return [
            topic
            for topic, queues in self._queues.items()
            if wanted(next(iter(queues.values())).topic_sys_flag)
        ]


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """A route reduced to the broker sets of one zone, and those without a master, which any zone reads."""
    dropped = {
        group.broker_name: group
        for group in route.broker_datas
        if MASTER_ID in group.broker_addrs and (group.zone_name or "").lower() != zone.lower()
    }
    addresses = {address for group in dropped.values() for address in group.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=[each for each in route.broker_datas if each.broker_name not in dropped],
        queue_datas=[each for each in route.queue_datas if each.broker_name not in dropped],
        filter_server_table={
            address: servers
            for address, servers in route.filter_server_table.items()
            if address not in addresses
        },
    )


def _copy(group: BrokerData) -> BrokerData:
    return msgspec.structs.replace(group, broker_addrs=dict(group.broker_addrs))


def _notice(group: BrokerData, *, offline: str | None, ha_address: str | None) -> Notice:
    """All members get a notice that one left; all but the new one, that one came."""
    members = group.broker_addrs
    least = min(members)
    receivers = [
        address
        for broker_id, address in members.items()
        if offline is not None or len(members) == 1 or broker_id != least
    ]
    return Notice(
        tuple(receivers),
        NotifyMinBrokerIdChange(
            min_broker_id=least,
            broker_name=group.broker_name,
            min_broker_addr=members[least],
            offline_broker_addr=offline,
            ha_broker_addr=ha_address,
        ),
    )
