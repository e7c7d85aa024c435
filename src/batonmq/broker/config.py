"""Keys of a broker's `.conf` file that belong to the broker itself.

Spelling, defaults and units are RocketMQ's (`BrokerConfig`, and the parts of `MessageStoreConfig` that decide
when a producer is answered). Keys of the files on disk are in `store/config.py`, keys of the replication link
in `ha/config.py`. The object is frozen; `updateBrokerConfig` replaces it on the `Broker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from batonmq.broker.unused_keys import UNUSED_KEYS
from batonmq.common.config import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    changeable,
    check_addresses,
    check_limits,
    number,
)
from batonmq.common.metrics_config import MetricsConfig
from batonmq.protocol.codes import MASTER_ID, Perm

MESSAGE_REQUEST_MODES = ("PULL", "POP")
BROKER_ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(MetricsConfig):
    """One broker: who it is, where it registers, what it accepts and when it acknowledges."""

    broker_name: str = field(default="", metadata={"key": "brokerName"})
    """Name of the broker set; empty: the host name."""
    broker_cluster_name: str = "DefaultCluster"
    """Cluster this broker set belongs to."""
    broker_id: int = number(MASTER_ID, -1)
    """0 is the master, above 0 a slave. In controller mode the controller assigns it and this key, which may
    be -1 there, is ignored."""
    broker_role: str = "ASYNC_MASTER"
    """ASYNC_MASTER, SYNC_MASTER or SLAVE; in controller mode the controller decides."""
    broker_ip1: str = field(default="", metadata={"key": "brokerIP1"})
    """Address that clients connect to; empty: the first address of this host that is not loopback."""
    broker_ip2: str = field(default="", metadata={"key": "brokerIP2"})
    """Address that slaves replicate from; empty: same as brokerIP1."""
    bind_address: str = "0.0.0.0"
    """Local address the listening sockets bind to."""
    listen_port: int = number(10911, 0, 65535)
    """Port for clients, name servers and tools."""
    vip_channel_enabled: bool = True
    """Also listen on listenPort - 2, which clients with a VIP channel use."""
    namesrv_addr: str = changeable("")
    """Name servers, `host:port;host:port`; empty: register nowhere."""
    broker_permission: int = number(Perm.READ | Perm.WRITE, 0, 7, changeable=True)
    """4 read, 2 write, 6 both; limits the permission of every topic at registration."""

    auto_create_topic_enable: bool = changeable(True)
    """Create a topic from the template TBW102 when a message for an unknown one arrives."""
    auto_create_subscription_group: bool = changeable(True)
    """Create a consumer group when an unknown one connects."""
    default_topic_queue_nums: int = number(8, 1)
    """Read and write queues of the template topic TBW102."""
    cluster_topic_enable: bool = True
    """Offer a topic named like the cluster."""
    broker_topic_enable: bool = True
    """Offer a topic named like the broker."""
    trace_topic_enable: bool = False
    """Offer the message trace topic."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """Name of the message trace topic."""
    region_id: str = changeable("DefaultRegion")
    """Written to each message as MSG_REGION."""
    trace_on: bool = changeable(True)
    """Written to each message as TRACE_ON."""

    register_broker_timeout_mills: int = number(24_000, 10, changeable=True)
    """How long a name server may take to answer a registration, ms."""
    register_name_server_period: int = number(30_000, 10, changeable=True)
    """Time between registrations, ms; 10 000 to 60 000 as in RocketMQ."""
    broker_heartbeat_interval: int = number(1_000, 10, changeable=True)
    """Time between heartbeats to name servers (with slave acting master) and controllers, ms."""
    send_heartbeat_timeout_millis: int = number(1_000, 10, changeable=True)
    """How long a heartbeat may take, ms."""
    forward_timeout: int = number(3_000, 10, changeable=True)
    """How long another broker may take to answer about its part of a static topic's queue, ms."""
    broker_not_active_timeout_millis: int = number(3_000, 10, changeable=True)
    """With slave acting master: silence after which name servers count this broker as gone, ms. RocketMQ's
    default is 10,000 (docs/decisions/hang-3s.md)."""
    enable_slave_acting_master: bool = changeable(False)
    """Send heartbeats (code 904) to the name servers, and let the slave with the lowest id act as master
    while there is none. In controller mode only the heartbeats have effect."""
    enable_remote_escape: bool = changeable(False)
    """What a slave that acts as master has to write goes to other masters of the cluster. false: only to
    masters in the same process; without one, delayed messages and the like wait."""
    delay_offset_update_version_step: int = number(200, 1, changeable=True)
    """Delivered batches of delayed messages between two data versions."""
    skip_pre_online: bool = False
    """Serve at once after a start. Otherwise, with enableSlaveActingMaster and totalReplicas above 1, a
    broker registers only when the other replicas follow it and it has their newer offsets and tables."""
    sync_broker_member_group_period: int = number(1_000, 10, changeable=True)
    """Time between requests for the live members of the broker set (with slave acting master), ms."""
    estimate_accumulation: bool = changeable(True)
    """The lag of a group that subscribes by tags counts only messages with these tags (by a sample if there
    are many)."""
    use_static_subscription: bool = changeable(False)
    """Lag is that of the topics in the groups' configurations, not of those that clients subscribe to."""
    enable_lmq_stats: bool = False
    """Count consumption for each light message queue and each of their groups (%LMQ%…), not for all together.
    There may be very many."""
    compatible_with_old_name_srv: bool = changeable(True)
    """Use only requests that name servers before 5.0 understand."""

    enable_controller_mode: bool = False
    """The controllers decide who is master; brokerId and brokerRole of this file are ignored."""
    controller_addr: str = changeable("")
    """Controllers, `host:port;host:port`."""
    sync_broker_metadata_period: int = number(5_000, 10, changeable=True)
    """Time between this broker's requests for its role to the controller, ms."""
    check_sync_state_set_period: int = number(5_000, 10, changeable=True)
    """Time between the master's checks for replicas to remove from the SyncStateSet, ms."""
    sync_controller_metadata_period: int = number(10_000, 10, changeable=True)
    """Time between requests for the leading controller, ms."""
    controller_heart_beat_timeout_mills: int = number(3_000, 10, changeable=True)
    """Silence after which the controller counts this broker as dead, ms; sent with each heartbeat (RocketMQ:
    10 000)."""
    broker_election_priority: int = number(2_147_483_647, -INT_MAX, changeable=True)
    """Lower is preferred among equal candidates for master."""
    enable_hand_back: bool = changeable(False)
    """BatonMQ only, on all replicas of the broker set: a slave with a lower brokerElectionPriority than the
    master's gets the role back, without losing a message."""
    hand_back_delay: int = number(10_000, 0, changeable=True)
    """How long such a slave must have followed the master; also the time between two attempts, ms."""

    all_ack_in_sync_state_set: bool = changeable(False)
    """Controller mode: acknowledge when every member of the SyncStateSet has the message."""
    in_sync_replicas: int = number(1, 1, changeable=True)
    """Copies, the master's included, that a message needs before SYNC_MASTER acknowledges it."""
    min_in_sync_replicas: int = number(1, 1, changeable=True)
    """Refuse messages while fewer replicas than this, the master included, are in sync."""
    total_replicas: int = number(1, 1, changeable=True)
    """Replicas configured in this broker set, the master included."""
    enable_auto_in_sync_replicas: bool = changeable(False)
    """Lower inSyncReplicas to the number of replicas in sync, but not below minInSyncReplicas."""
    store_reply_message_enable: bool = changeable(True)
    """Store replies to request messages in the reply topic, too."""
    reply_thread_pool_queue_capacity: int = number(10_000, 1, changeable=True)
    """Replies that may be on their way to requesters at a time; the answer to further ones is SYSTEM_BUSY."""
    slave_timeout: int = number(3_000, 1, changeable=True)
    """How long an acknowledgement waits for the replicas before FLUSH_SLAVE_TIMEOUT, ms."""
    send_thread_pool_queue_capacity: int = number(10_000, 1, changeable=True)
    """Messages that may wait for their acknowledgement at a time; the answer to further ones is
    SYSTEM_BUSY."""
    reject_transaction_message: bool = changeable(False)
    """Refuse transactional messages."""
    start_accept_send_request_time_stamp: int = number(0, 0, LONG_MAX, changeable=True)
    """Answer sends before this time with SYSTEM_ERROR, ms since the epoch."""

    long_polling_enable: bool = changeable(True)
    """Hold a pull that finds nothing until a message arrives or its timeout expires."""
    short_polling_time_mills: int = number(1_000, 1, changeable=True)
    """Time such a pull is held with longPollingEnable=false, ms."""
    lite_pull_message_enable: bool = changeable(True)
    """Accept LITE_PULL_MESSAGE."""
    slave_read_enable: bool = changeable(False)
    """Slaves answer pulls, and the master redirects slow consumers to them."""
    enable_d_leger_commit_log: bool = changeable(False)
    """A commit log replicated by DLedger's Raft, RocketMQ's older mode: must stay false, see
    enableControllerMode."""
    enable_property_filter: bool = changeable(False)
    """Accept SQL92 subscriptions: filters by the properties of messages."""
    filter_data_clean_time_span: int = number(86_400_000, 1000, changeable=True)
    """Time after which the SQL92 filter of a group without consumers is forgotten, ms."""
    enable_calc_filter_bit_map: bool = changeable(False)
    """Bloom filters of SQL92 results beside the consume queues. They change no result and are not available
    here: must stay false."""
    use_server_side_reset_offset: bool = changeable(True)
    """The broker stores offset resets and applies them to the next pull."""
    offset_check_in_slave: bool = changeable(False)
    """A slave also answers PULL_OFFSET_MOVED."""
    notify_consumer_ids_changed_enable: bool = changeable(True)
    """Notify the members of a group when one joins or leaves."""
    enable_broadcast_offset_store: bool = changeable(True)
    """Track how far each client of a broadcasting group is, for those that move between proxy and broker."""
    broadcast_offset_expire_second: int = number(120, 1, 1_000_000, changeable=True)
    """Time without pulls after which such a client is forgotten, s."""
    broadcast_offset_expire_max_second: int = number(300, 1, 1_000_000, changeable=True)
    """The same for one that is still connected, s."""
    consumer_offset_update_version_step: int = number(500, 1, changeable=True)
    """Offset commits between two data versions."""
    reject_pull_consumer_enable: bool = changeable(False)
    """Refuse pull consumers: the broker ignores their heartbeats, and clients without a heartbeat may not
    pull. It serves push consumers and RocketMQ's internal groups."""

    timer_wheel_enable: bool = True
    """Accept messages with an exact time of delivery (TIMER_DELIVER_MS and others)."""
    timer_precision_ms: int = number(1_000, 1)
    """Step of the timer wheel, ms: 100, 200, 500 or 1000; others are rounded down to one of these. Timed
    messages are late by up to one step."""
    timer_max_delay_sec: int = number(259_200, 1, changeable=True)
    """Longest time that a timed message may wait, s."""
    timer_roll_window_slot: int = number(172_800, 0)
    """Timed messages that are due later than this many steps are stored again before they are delivered."""
    timer_flush_interval_ms: int = number(1_000, 10, changeable=True)
    """Time between flushes of the timer's files, ms."""
    timer_congest_num_each_slot: int = number(INT_MAX, 1, changeable=True)
    """Timed messages due in the same step above which some are refused; above twice as many, all."""
    timer_stop_enqueue: bool = changeable(False)
    """Leave new timed messages outside the timer wheel."""
    timer_stop_dequeue: bool = changeable(False)
    """Deliver no timed messages."""
    mapped_file_size_timer_log: int = number(100 << 20, 4096, 1 << 30)
    """Bytes of one file of the timer log; all files of a store have the same size."""
    recall_message_enable: bool = changeable(False)
    """Let producers take back timed messages."""
    allow_recall_when_broker_not_writeable: bool = changeable(True)
    """Also while brokerPermission forbids sends."""
    append_topic_for_timer_delete_key: bool = changeable(False)
    """Recall by topic and unique id instead of the unique id alone."""

    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delay of each level, the first is level 1; units s, m, h, d."""
    flush_delay_offset_interval: int = number(10_000, 10, changeable=True)
    """Time between writes of delayOffset.json, ms."""
    flush_consumer_offset_interval: int = number(5_000, 10, changeable=True)
    """Time between writes of consumerOffset.json, ms."""
    transaction_time_out: int = number(6_000, 1, changeable=True)
    """Age from which an undecided transactional message is checked, ms."""
    transaction_check_max: int = number(15, 0, changeable=True)
    """Checks after which an undecided message is moved to TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_check_interval: int = number(30_000, 10, changeable=True)
    """Time between two checks of all undecided messages, ms."""
    transaction_op_msg_max_size: int = number(4_096, 1, changeable=True)
    """Bytes of collected decisions at which an op message is written without further delay."""
    transaction_op_batch_interval: int = number(3_000, 1, changeable=True)
    """Longest time that decisions are collected for one op message, ms."""
    end_transaction_pool_queue_capacity: int = number(100_000, 1, changeable=True)
    """Ends of transactions that may wait at a time; the answer to further ones is SYSTEM_BUSY."""
    channel_expired_timeout: int = number(120_000, 1000, changeable=True)
    """Silence after which a client is forgotten, ms."""
    subscription_expired_timeout: int = number(600_000, 1000, changeable=True)
    """Silence after which a subscription is forgotten, ms."""
    enable_mixed_message_type: bool = changeable(False)
    """Accept topics with the attribute message.type=MIXED."""
    validate_system_topic_when_update_topic: bool = changeable(True)
    """Refuse to change system topics."""
    lock_in_strict_mode: bool = changeable(False)
    """Queue locks need more than half of totalReplicas; with enableSlaveActingMaster."""

    default_message_request_mode: str = changeable("PULL")
    """How groups consume whose mode was not set by setConsumeMode: PULL or POP."""
    default_pop_share_queue_num: int = number(-1, -1, changeable=True)
    """With defaultMessageRequestMode=POP: clients whose queues a client pops besides its own; -1: all."""
    server_load_balancer_enable: bool = changeable(True)
    """Answer QUERY_ASSIGNMENT with a client's share; false: with all queues."""
    revive_queue_num: int = number(8, 1, 1024)
    """Queues of the revive topic that check points of pop consumers are written to in turn; at most as many
    as the topic has."""
    enable_retry_topic_v2: bool = changeable(False)
    """Name retry topics of pop consumers %RETRY%group+topic, not %RETRY%group_topic."""
    retrieve_message_from_pop_retry_topic_v1: bool = changeable(True)
    """With enableRetryTopicV2: pop consumers also get what is in the retry topic of the other name."""
    pop_from_retry_probability: int = number(20, 0, 100, changeable=True)
    """Share of pops that look into the retry topic first, percent; the others look there last."""
    pop_from_retry_probability_for_priority: int = number(0, 0, 100, changeable=True)
    """The same for pops that take the queues of a topic with message.type=PRIORITY by priority."""
    priority_order_asc: bool = changeable(True)
    """In topics with message.type=PRIORITY a queue with a higher number comes first; false: a lower one."""
    use_separate_retry_queue: bool = changeable(False)
    """Retry topics of pop consumers get the queues of the topic, and a message stays in its queue; false: one
    queue."""
    init_pop_offset_by_check_msg_in_mem: bool = changeable(True)
    """A pop group that starts at the end starts at the first message while that is in memory."""
    pop_response_return_actual_retry_topic: bool = changeable(False)
    """Hand out messages of retry topics as they are stored, not as messages of the topic that was asked
    for."""
    pop_polling_size: int = number(1024, 1, changeable=True)
    """Pops of one group that may wait for the same queue; the answer to more is POLLING_FULL."""
    pop_polling_map_size: int = number(100_000, 1, changeable=True)
    """Groups and queues that pops may wait for at a time."""
    max_pop_polling_size: int = number(100_000, 1, changeable=True)
    """Pops that may wait at a time."""
    pop_ck_max_buffer_size: int = number(200_000, 1, changeable=True)
    """Batches that may be handed out and unacknowledged at a time, about 600 bytes each; while there are
    more, pops find no messages."""

    HAS_NO_EFFECT: ClassVar[Mapping[str, str]] = UNUSED_KEYS
    """RocketMQ's keys that mean nothing here, and why."""

    def __post_init__(self) -> None:
        check_limits(self)
        check_addresses("namesrvAddr", self.namesrv_addr)
        check_addresses("controllerAddr", self.controller_addr)
        MetricsConfig.__post_init__(self)  # super() does not know the class that slots=True creates

        def need(condition: bool, key: str, value: object, what: str) -> None:
            if not condition:
                raise ConfigError(f"{key}={value}: {what}")

        need(
            self.broker_role in BROKER_ROLES,
            "brokerRole",
            self.broker_role,
            f"expected one of {', '.join(BROKER_ROLES)}",
        )
        parse_delay_levels(self.message_delay_level)
        need(
            self.default_message_request_mode in MESSAGE_REQUEST_MODES,
            "defaultMessageRequestMode",
            self.default_message_request_mode,
            f"expected one of {', '.join(MESSAGE_REQUEST_MODES)}",
        )
        need(
            self.broker_id >= MASTER_ID or self.enable_controller_mode,
            "brokerId",
            self.broker_id,
            "must be at least 0, except with enableControllerMode=true",
        )
        need(
            self.min_in_sync_replicas <= self.in_sync_replicas or self.enable_controller_mode,
            "minInSyncReplicas",
            self.min_in_sync_replicas,
            f"expected 1 to inSyncReplicas={self.in_sync_replicas}",
        )
        need(
            self.in_sync_replicas <= self.total_replicas or self.enable_controller_mode,
            "inSyncReplicas",
            self.in_sync_replicas,
            f"must not be above totalReplicas={self.total_replicas}",
        )
        need(
            not self.enable_d_leger_commit_log,
            "enableDLegerCommitLog",
            "true",
            "DLedger's commit log is not available here, and without it nothing would be replicated; use "
            "enableControllerMode=true",
        )
        need(
            not self.enable_calc_filter_bit_map,
            "enableCalcFilterBitMap",
            "true",
            "bit maps of filters are not available here, and SQL92 filters work without them; remove the key",
        )
        need(
            not self.lock_in_strict_mode
            or self.total_replicas == 1
            or (self.enable_slave_acting_master and not self.enable_controller_mode),
            "lockInStrictMode",
            "true",
            f"with totalReplicas={self.total_replicas} it needs enableSlaveActingMaster=true (and no "
            "controllers), or no queue could be locked",
        )
        need(
            not self.enable_controller_mode or bool(self.controller_addr),
            "controllerAddr",
            "",
            "enableControllerMode=true needs the controllers' addresses",
        )


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """``"1s 5s 2h"`` -> delays in ms, the first is level 1. Raises `ConfigError` naming the part that is
    wrong."""
    delays = []
    for part in text.split():
        unit = _UNIT_MS.get(part[-1])
        if unit is None or not part[:-1].isascii() or not part[:-1].isdigit():
            raise ConfigError(f"messageDelayLevel={text}: {part!r} is not a number followed by s, m, h or d")
        delays.append(int(part[:-1]) * unit)
    if not delays:
        raise ConfigError("messageDelayLevel=: at least one level is needed, for example 1s 5s 10s")
    return tuple(delays)
