"""Requests between the brokers of a broker set, and requests of tools about replication.

Source: RocketMQ's EXCHANGE_BROKER_HA_INFO, RESET_MASTER_FLUSH_OFFSET, GET_BROKER_HA_STATUS
and GET_BROKER_EPOCH_CACHE.
"""

from __future__ import annotations

import logging

from batonmq.broker.context import Broker
from batonmq.broker.replica.fixed_role import SLAVE
from batonmq.common.addresses import is_address
from batonmq.common.config import LONG_MAX
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.classic.service import ClassicHAService
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.replication import (
    EpochEntry,
    EpochEntryCache,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import encode

log = logging.getLogger(__name__)


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _ReplicationHandlers(broker)
    dispatcher.on(wire.ExchangeHAInfo, handlers.exchange)
    dispatcher.on(wire.WatchTables, handlers.watch_tables)
    dispatcher.on(wire.ResetMasterFlushOffset, handlers.reset_master_flush_offset)
    dispatcher.on(wire.GetBrokerHAStatus, handlers.status)
    dispatcher.on(wire.GetBrokerEpochCache, handlers.epochs)


class _ReplicationHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def exchange(self, request: Request, header: wire.ExchangeHAInfo) -> Reply:
        """A slave asks the master for its addresses, or a master that returns announces itself. With
        controllers an announcement is ignored: they know the master."""
        broker = self._broker
        if header.master_ha_address is not None:
            return Reply(self._announced(request, header, header.master_ha_address))
        if not broker.role.is_master:
            return Reply(wire.ExchangeHAInfoResponse())
        return Reply(
            wire.ExchangeHAInfoResponse(
                master_ha_address=broker.ha_address,
                master_flush_offset=broker.store.flushed_offset,
                master_address=broker.address,
            )
        )

    def _announced(
        self, request: Request, header: wire.ExchangeHAInfo, address: str
    ) -> wire.ExchangeHAInfoResponse:
        """Follow the master at this replication port, and answer whether this slave does so already.

        Anybody may send this: it takes no slave away from a master whose link stands."""
        broker, replication = self._broker, self._broker.replication
        config = broker.settings.broker
        if not (
            config.enable_slave_acting_master
            and config.broker_role == SLAVE
            and isinstance(replication, ClassicHAService)
        ):
            log.debug("%s announces a master at %s; ignored", request.connection.peer, header.master_address)
            return wire.ExchangeHAInfoResponse()
        if not (is_address(address) and address.isprintable()):
            raise MQError(ResponseCode.INVALID_PARAMETER, "masterHaAddress is not host:port")
        if not replication.following:
            address = broker.settings.ha.ha_master_address or address
            broker.role.master_ha_address = address
            replication.set_master_address(address)
            replication.hasten()
        master = replication.master()
        return wire.ExchangeHAInfoResponse(
            follows=replication.followed, linked_from=master.local_address if master is not None else ""
        )

    async def watch_tables(self, request: Request, header: wire.WatchTables) -> Reply:
        """A slave waits for changed topics, groups and new offsets."""
        broker = self._broker
        if not broker.role.is_master:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"{broker.address} is not the master, its tables are a copy"
            )
        watch = broker.tables.watch
        changes = await watch.next_change(request.connection, header.copied, header.broker_id)
        return Reply(wire.WatchTablesResponse(changes, watch.access_control))

    def reset_master_flush_offset(self, request: Request, header: wire.ResetMasterFlushOffset) -> Reply:
        """Refused: slaves serve reads up to the confirm offset, which the master sends them."""
        raise MQError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "there is no master flush offset to reset here: slaves serve up to the confirm offset",
        )

    def status(self, request: Request, header: wire.GetBrokerHAStatus) -> Reply:
        broker = self._broker
        end = broker.store.max_offset
        info = HARuntimeInfo(master=broker.role.is_master)
        if broker.role.is_master:
            replicas = broker.replication.replicas() if broker.replication is not None else []
            info.master_commit_log_max_offset = end
            info.in_sync_slave_nums = sum(replica.in_sync for replica in replicas)
            info.ha_connection_info = [
                HAConnectionRuntimeInfo(
                    addr=replica.address,
                    slave_ack_offset=replica.ack_offset,
                    diff=end - max(0, replica.ack_offset),
                    in_sync=replica.in_sync,
                    transferred_byte_in_second=replica.bytes_per_second,
                    transfer_from_where=replica.next_offset,
                )
                for replica in replicas
            ]
        else:
            master = broker.replication.master() if broker.replication is not None else None
            info.ha_client_runtime_info = HAClientRuntimeInfo(
                master_addr=master.address if master else broker.role.master_ha_address,
                transferred_byte_in_second=master.bytes_per_second if master else 0,
                max_offset=end,
                last_read_timestamp=master.last_read_ms if master else 0,
                last_write_timestamp=master.last_write_ms if master else 0,
            )
        return Reply(body=encode(info))

    def epochs(self, request: Request, header: wire.GetBrokerEpochCache) -> Reply:
        broker = self._broker
        if not isinstance(broker.replication, HAService):
            raise MQError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        entries = broker.replication.epochs.entries
        ends = [entry.start_offset for entry in entries[1:]] + [LONG_MAX]
        body = EpochEntryCache(
            cluster_name=broker.settings.broker.broker_cluster_name,
            broker_name=broker.settings.broker.broker_name,
            broker_id=broker.role.broker_id,
            epoch_list=[
                EpochEntry(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=end)
                for entry, end in zip(entries, ends, strict=False)
            ],
            max_offset=broker.store.max_offset,
        )
        return Reply(body=encode(body))
