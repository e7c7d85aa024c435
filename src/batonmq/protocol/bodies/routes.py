"""Routes, clusters and broker sets, as name servers give them.

Source: the `protocol.route` and `protocol.body` packages of Apache RocketMQ 5.
"""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.json import Body
from batonmq.protocol.registry import I32, I64


class QueueData(Body):
    """A topic's queues on one broker."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Body):
    """One broker set: broker id (0 is the master) -> ``host:port``."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicQueueMappingInfo(Body):
    """Static topics: logical queue -> physical queue on one broker."""

    topic: str | None = None
    scope: str = "__global__"
    total_queues: I32 = 0
    bname: str | None = None
    epoch: I64 = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)


class TopicRouteData(Body):
    """Where a topic's queues are."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(Body):
    """Broker name -> broker set, cluster name -> broker names."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class BrokerMemberGroup(Body):
    """Live members of one broker set."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body):
    broker_member_group: BrokerMemberGroup | None = None
