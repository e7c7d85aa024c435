"""Between brokers, and what they say of it."""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, request


class ExchangeHAInfoResponse(Header):
    """The master's side of `ExchangeHAInfo`."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None
    follows: str | None = None
    """Answer to a master that announces itself, not in RocketMQ: the replication port that this slave
    follows, past the handshake; empty: none."""
    linked_from: str | None = None
    """With `follows`: the slave's end of that connection, ``ip:port``."""


@request(RequestCode.EXCHANGE_BROKER_HA_INFO, response=ExchangeHAInfoResponse)
class ExchangeHAInfo(Header):
    """Slave and master exchange their replication addresses and flushed offsets."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class WatchTablesResponse(Header):
    """Changes of the master's tables so far."""

    changes: I64
    access_control: str | None = None
    """Mark of the master's users and access control lists; absent if there are none."""


@request(RequestCode.WATCH_TABLES, response=WatchTablesResponse)
class WatchTables(Header):
    """A slave has copied so many changes of the master's tables (-1: none) and waits for the next."""

    copied: I64
    broker_id: I64 | None = None


class HandBackResponse(Header):
    """Whether the slave was elected; false if the master is as good a choice."""

    elected: bool


@request(RequestCode.HAND_BACK, response=HandBackResponse)
class HandBack(Header):
    """A slave asks the master of this epoch for the role; `priority`: its brokerElectionPriority."""

    broker_name: str
    broker_id: I64
    epoch: I32
    priority: I32


@request(RequestCode.GET_ALL_CONSUMER_FILTER)
class GetAllConsumerFilter(Header):
    """The SQL92 filters of a master, for its slaves; the body of the answer is a consumerFilter.json."""


@request(RequestCode.GET_ALL_RESET_OFFSET)
class GetAllResetOffset(Header):
    """The offset resets that no pull has used, for slaves; body `ResetOffsets`."""


@request(RequestCode.GET_ALL_TRANSACTION_CHECKS)
class GetAllTransactionChecks(Header):
    """How often undecided half messages were checked, for slaves; body `TransactionChecks`."""


@request(RequestCode.GET_BROKER_HA_STATUS)
class GetBrokerHAStatus(Header):
    """Replication as this broker sees it; body `HARuntimeInfo`."""


@request(RequestCode.GET_BROKER_EPOCH_CACHE)
class GetBrokerEpochCache(Header):
    """The epoch file; body `EpochEntryCache`."""


@request(RequestCode.RESET_MASTER_FLUSH_OFFSET)
class ResetMasterFlushOffset(Header):
    """The master's flushed offset, for a slave."""

    master_flush_offset: I64


@request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
class NotifyMinBrokerIdChange(Header):
    """The name server says that a group's least live broker id changed (slave acting master)."""

    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@request(RequestCode.ADD_BROKER)
class AddBroker(Header):
    """Start a broker in this container."""

    config_path: str | None = None


@request(RequestCode.REMOVE_BROKER)
class RemoveBroker(Header):
    """Stop a broker of this container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: I64
