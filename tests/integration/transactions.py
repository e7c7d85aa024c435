"""A producer of transactional messages that speaks the protocol itself, for brokers of any kind."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from batonmq.net import Dispatcher, RemotingClient, Reply, Request
from batonmq.protocol.bodies.clients import HeartbeatData, ProducerData
from batonmq.protocol.codes import MessageSysFlag, PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import EndTransaction, SendMessageResponse, SendMessageV2
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.json import encode
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import MessageExt, decode_record, decode_records

COMMIT, ROLLBACK = MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK
PREPARED = MessageSysFlag.TRANSACTION_PREPARED
UNKNOWN = 0
PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@dataclass
class Half:
    """A half message that was acknowledged."""

    key: str
    answer: SendMessageResponse

    @property
    def physical_offset(self) -> int:
        return decode_message_id(self.answer.msg_id)[2]


@dataclass
class RawProducer:
    """A producer that speaks the protocol itself, and answers checks with `decisions`."""

    client: RemotingClient
    address: str
    """``ip:port`` of the broker."""
    decisions: dict[str, int] = field(default_factory=dict)
    """Unique key -> what the producer answers to checks; without an entry it does not know."""
    checks: list[tuple[CheckTransactionState, MessageExt]] = field(default_factory=list)

    async def call(self, header: Any, body: bytes = b"", **options: Any) -> Any:
        return await self.client.call(self.address, header, body, **{"timeout_ms": 20_000, **options})

    async def connect(self, group: str = "p") -> None:
        """Be a producer of the group."""
        data = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=group)])
        await self.call(Heartbeat(), encode(data))

    async def prepare(self, key: str, *, topic: str = "T", queue: int = 1, **properties: str) -> Half:
        values = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": key, **properties}
        header = SendMessageV2(
            producer_group="p",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=PREPARED,
            born_timestamp=int(time.time() * 1000),
            flag=3,
            properties=encode_properties(values).decode(),
        )
        answer = await self.call(header, key.encode())
        return Half(key, answer.header)

    async def end(self, half: Half, kind: int, **fields: Any) -> None:
        values: dict[str, Any] = {
            "producer_group": "p",
            "tran_state_table_offset": half.answer.queue_offset,
            "commit_log_offset": half.physical_offset,
            "commit_or_rollback": kind,
            "msg_id": half.key,
            "transaction_id": half.key,
        }
        await self.call(EndTransaction(**{**values, **fields}))

    async def messages(self, topic: str = "T", queue: int = 1) -> list[MessageExt]:
        header = PullMessage(
            consumer_group="g",
            topic=topic,
            queue_id=queue,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=1_000,
            sub_version=0,
            subscription="*",
        )
        return decode_records((await self.call(header, accept=PULLED)).body)

    async def bodies(self, topic: str = "T", queue: int = 1) -> list[str]:
        return [message.body.decode() for message in await self.messages(topic, queue)]

    async def on_check(self, request: Request, header: CheckTransactionState) -> Reply | None:
        record = decode_record(request.command.body)
        self.checks.append((header, record))
        key = record.properties["UNIQ_KEY"]
        await request.connection.call(  # a real producer answers oneway
            EndTransaction(
                producer_group="p",
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                commit_or_rollback=self.decisions[key],
                msg_id=key,
                from_transaction_check=True,
                transaction_id=header.transaction_id,
            )
        ) if key in self.decisions else None
        return None


def raw_producer(address: str) -> RawProducer:
    """A producer for the broker at `address`; close its `client`."""
    dispatcher = Dispatcher()
    producer = RawProducer(RemotingClient(dispatcher=dispatcher), address)
    dispatcher.on(CheckTransactionState, producer.on_check)
    return producer
