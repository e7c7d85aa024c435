"""A broker and a client that pops, acknowledges and changes invisible times."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.broker.rig import configs, v2

from batonmq.broker.pop.part import PopPart
from batonmq.broker.service import BrokerService
from batonmq.net import RemotingClient, Response
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.message.properties import PROPERTY_POP_CK
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.pop import (
    Receipt,
    parse_msg_offset_info,
    parse_receipt,
    parse_start_offset_info,
    retry_flag,
)

POPPED = (0, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)


@dataclass
class Popped:
    """A message as a client sees it."""

    record: MessageExt
    receipt: Receipt

    @property
    def body(self) -> bytes:
        return self.record.body


@dataclass
class Rig:
    """One broker, and a client that makes receipts from answers as RocketMQ's clients do."""

    root: Path
    keys: dict[str, Any]
    client: RemotingClient = field(default_factory=RemotingClient)
    broker: BrokerService | None = None
    address: str = ""
    """Of a broker in another process."""

    async def start(self) -> None:
        self.broker = BrokerService(*configs(self.root, **self.keys))
        await self.broker.start()

    async def restart(self) -> None:
        await self.stop()
        self.client = RemotingClient()
        await self.start()

    async def stop(self) -> None:
        await self.client.close()
        assert self.broker is not None
        await self.broker.stop()

    @property
    def part(self) -> PopPart:
        assert self.broker is not None
        return self.broker.part(PopPart)

    def damage(self, topic: str, queue_offset: int, by: bytes) -> None:
        """Write `by` over the begin of a record in queue 0, on disk."""
        assert self.broker is not None
        store = self.broker.broker.store
        unit = store._queues.by_key[topic, 0].unit(queue_offset)
        assert unit is not None
        with (store.config.commit_log_path / f"{0:020d}").open("r+b") as file:
            file.seek(unit[0])
            file.write(by)

    async def popped_offsets(self, **fields: Any) -> list[int]:
        """Queue offsets that one pop's answer has receipts for, whether or not the records can be read."""
        header = (await self.ask(**fields)).header
        assert isinstance(header, PopMessageResponse)
        return [
            each for offsets in parse_msg_offset_info(header.msg_offset_info).values() for each in offsets
        ]

    async def call(self, header: Any, body: bytes = b"", **options: Any) -> Response:
        address = self.address
        if self.broker is not None:
            address = f"127.0.0.1:{self.broker.port}"
        return await self.client.call(address, header, body, **options)

    async def create(self, topic: str = "T", queues: int = 1, attributes: str | None = None) -> None:
        await self.call(
            CreateTopic(
                attributes=attributes,
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                order=False,
            )
        )

    async def send(self, *bodies: bytes, topic: str = "T", queue: int = 0, tags: str = "") -> None:
        for body in bodies:
            await self.call(v2(topic, queue, properties=f"TAGS\x01{tags}\x02" if tags else ""), body)

    async def ask(self, topic: str = "T", group: str = "g", **fields: Any) -> Response:
        values: dict[str, Any] = {
            "consumer_group": group,
            "topic": topic,
            "queue_id": -1,
            "max_msg_nums": 32,
            "invisible_time": 60_000,
            "poll_time": 0,
            "born_time": 0,
            "init_mode": 0,
        }
        return await self.call(PopMessage(**{**values, **fields}), accept=POPPED, timeout_ms=20_000)

    async def pop(self, topic: str = "T", group: str = "g", **fields: Any) -> list[Popped]:
        answer = await self.ask(topic, group, **fields)
        header = answer.header
        assert isinstance(header, PopMessageResponse)
        starts = parse_start_offset_info(header.start_offset_info)
        offsets = parse_msg_offset_info(header.msg_offset_info)
        found = []
        for record in decode_records(answer.body):
            known = record.properties.get(PROPERTY_POP_CK)
            if known is not None:
                receipt = parse_receipt(known)
            else:
                place = retry_flag(record.topic), record.queue_id
                assert record.queue_offset in offsets[place]
                receipt = Receipt(
                    starts[place],
                    header.pop_time,
                    header.invisible_time,
                    header.revive_qid,
                    place[0],
                    "b",
                    record.queue_id,
                    record.queue_offset,
                )
            found.append(Popped(record, receipt))
        assert len(found) == sum(map(len, offsets.values()))
        return found

    async def bodies(self, **fields: Any) -> list[bytes]:
        return [each.body for each in await self.pop(**fields)]

    async def ack(self, *popped: Popped, topic: str = "T", group: str = "g") -> None:
        for each in popped:
            receipt = each.receipt
            await self.call(
                AckMessage(
                    consumer_group=group,
                    topic=receipt.stored_topic(topic, group),
                    queue_id=receipt.queue_id,
                    extra_info=str(receipt),
                    offset=receipt.offset,
                )
            )

    async def change(
        self, popped: Popped, invisible_ms: int, topic: str = "T", group: str = "g"
    ) -> ChangeInvisibleTimeResponse:
        receipt = popped.receipt
        answer = await self.call(
            ChangeInvisibleTime(
                consumer_group=group,
                topic=receipt.stored_topic(topic, group),
                queue_id=receipt.queue_id,
                extra_info=str(receipt),
                offset=receipt.offset,
                invisible_time=invisible_ms,
            )
        )
        assert isinstance(answer.header, ChangeInvisibleTimeResponse)
        return answer.header


Starter = Callable[..., Awaitable[Rig]]
