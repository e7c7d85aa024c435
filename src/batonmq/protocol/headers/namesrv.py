"""Headers of the requests that name servers serve, and of their answers.

Source: `RequestCode` and the `protocol.header.namesrv` package of Apache RocketMQ 5.
"""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, request

# Key-value configuration

ZONE_NAME = "__ZONE_NAME"
"""Field with the zone of a broker or client, beside those of any header."""
ZONE_MODE = "__ZONE_MODE"
"""Field: "true" when a client wants only routes of its zone."""


@request(RequestCode.PUT_KV_CONFIG)
class PutKVConfig(Header):
    """Set one value."""

    namespace: str
    key: str
    value: str


class GetKVConfigResponse(Header):
    value: str | None = None


@request(RequestCode.GET_KV_CONFIG, response=GetKVConfigResponse)
class GetKVConfig(Header):
    """Read one value; QUERY_NOT_FOUND without one."""

    namespace: str
    key: str


@request(RequestCode.DELETE_KV_CONFIG)
class DeleteKVConfig(Header):
    """Remove one value; no error without one."""

    namespace: str
    key: str


@request(RequestCode.GET_KVLIST_BY_NAMESPACE)
class GetKVListByNamespace(Header):
    """All values of a namespace; the answer's body is a `KVTable`."""

    namespace: str


# Brokers


class RegisterBrokerResponse(Header):
    """For a slave: where its master is. The body may be the `KVTable` of the ordered topics."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@request(RequestCode.REGISTER_BROKER, response=RegisterBrokerResponse)
class RegisterBroker(Header):
    """A broker registers itself and, in the body (`register_body.py`), its topics.

    ``heartbeat_timeout_millis``: how long its silence is taken for life; 120 s unless given.
    ``body_crc32``: CRC32 of the body without its top bit; 0 means not given.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0


@request(RequestCode.UNREGISTER_BROKER)
class UnregisterBroker(Header):
    """A broker says that it leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class BrokerHeartbeatReply(Header):
    """Of a controller, and only to a forwarded heartbeat."""

    master_epoch: I32 | None = None


@request(RequestCode.BROKER_HEARTBEAT, response=BrokerHeartbeatReply)
class BrokerHeartbeat(Header):
    """A broker says that it lives: to name servers, and with the replication state to controllers.

    ``heartbeat_timeout_mills`` (RocketMQ's spelling) in ms; ``election_priority``: lower is preferred.
    ``forwarded`` (ours): another controller passes this heartbeat on, so it is not bound to a connection, and
    the answer names the master epoch. ``silent_master_epoch`` (ours): this slave has received nothing for
    unusually long over the replication link from the master of that epoch.
    """

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_mills: I64 | None = None
    election_priority: I32 | None = None
    forwarded: bool | None = None
    silent_master_epoch: I32 | None = None


class QueryDataVersionResponse(Header):
    changed: bool


@request(RequestCode.QUERY_DATA_VERSION, response=QueryDataVersionResponse)
class QueryDataVersion(Header):
    """Ask whether the name server holds the table of this `DataVersion` (the body); counts as a heartbeat."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@request(RequestCode.GET_BROKER_MEMBER_GROUP)
class GetBrokerMemberGroup(Header):
    """Live members of a broker set; the answer's body is a `GetBrokerMemberGroupResponseBody`."""

    cluster_name: str
    broker_name: str


@request(RequestCode.GET_BROKER_CLUSTER_INFO)
class GetBrokerClusterInfo(Header):
    """All clusters and groups; the answer's body is a `ClusterInfo`."""


class WipeWritePermOfBrokerResponse(Header):
    wipe_topic_count: I32


@request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, response=WipeWritePermOfBrokerResponse)
class WipeWritePermOfBroker(Header):
    """Take the write permission of a group's queues out of the routes, until it registers changed topics."""

    broker_name: str


class AddWritePermOfBrokerResponse(Header):
    add_topic_count: I32


@request(RequestCode.ADD_WRITE_PERM_OF_BROKER, response=AddWritePermOfBrokerResponse)
class AddWritePermOfBroker(Header):
    """Undo `WipeWritePermOfBroker`."""

    broker_name: str


# Topics


@request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
class GetRouteInfo(Header):
    """Where a topic's queues are, as a `TopicRouteData`; TOPIC_NOT_EXIST when nowhere."""

    topic: str
    accept_standard_json_only: bool | None = None


@request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
class GetAllTopicList(Header):
    """Names of all topics; the answer's body is a `TopicList`, as for the lists below."""


@request(RequestCode.GET_TOPICS_BY_CLUSTER)
class GetTopicsByCluster(Header):
    """Topics with a queue on some broker of the cluster."""

    cluster: str


@request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
class GetSystemTopicListFromNs(Header):
    """Names of clusters and brokers, which are topics too, and the address of some broker."""


@request(RequestCode.GET_UNIT_TOPIC_LIST)
class GetUnitTopicList(Header):
    """Topics with the unit flag."""


@request(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
class GetHasUnitSubTopicList(Header):
    """Topics with the unit subscription flag."""


@request(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
class GetHasUnitSubUnunitTopicList(Header):
    """Topics with the unit subscription flag, but not the unit flag."""


@request(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
class RegisterTopicInNamesrv(Header):
    """Put the queues of a `TopicRouteData` (the body) into the routes; every broker in it must be known."""

    topic: str


@request(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicInNamesrv(Header):
    """Take a topic out of the routes, of one cluster if given."""

    topic: str
    cluster_name: str | None = None


# The name server's own configuration


@request(RequestCode.UPDATE_NAMESRV_CONFIG)
class UpdateNamesrvConfig(Header):
    """Change keys; the body is ``key=value`` lines."""


@request(RequestCode.GET_NAMESRV_CONFIG)
class GetNamesrvConfig(Header):
    """All keys; the answer's body is ``key=value`` lines."""
