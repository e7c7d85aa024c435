"""Requests for the connected producers and consumers."""

from __future__ import annotations

from batonmq.broker.context import Broker
from batonmq.broker.tables.consumers import Member
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.clients import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from batonmq.protocol.codes import LanguageCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import encode


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _ClientListHandlers(broker)
    dispatcher.on(wire.GetConsumerConnectionList, handlers.consumers)
    dispatcher.on(wire.GetProducerConnectionList, handlers.producers)
    dispatcher.on(wire.GetAllProducerInfo, handlers.all_producers)


class _ClientListHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def consumers(self, request: Request, header: wire.GetConsumerConnectionList) -> Reply:
        group = self._broker.tables.consumers.group(header.consumer_group)
        if group is None:
            raise MQError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
        body = ConsumerConnection(
            connection_set=[_connection(member) for member in group.members.values()],
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return Reply(body=encode(body))

    def producers(self, request: Request, header: wire.GetProducerConnectionList) -> Reply:
        members = self._broker.tables.producers.members(header.producer_group)
        if members is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
        return Reply(body=encode(ProducerConnection(connection_set=[_connection(m) for m in members])))

    def all_producers(self, request: Request, header: wire.GetAllProducerInfo) -> Reply:
        clock = self._broker.clock
        began_ms = clock.now_ms() - clock.monotonic_ms()
        table = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.connection.peer,
                    language=LanguageCode(member.language).name,
                    version=member.version,
                    last_update_timestamp=began_ms + member.seen_ms,
                )
                for member in members.values()
            ]
            for group, members in self._broker.tables.producers.groups.items()
        }
        return Reply(body=encode(ProducerTableInfo(data=table)))


def _connection(member: Member) -> Connection:
    return Connection(
        client_id=member.client_id,
        client_addr=member.connection.peer,
        language=LanguageCode(member.language).name,
        version=member.version,
    )
