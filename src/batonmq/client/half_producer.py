"""Half messages whose outcome is kept elsewhere: prepare now, commit or roll back later, from any process.

For programs that write many messages as one transaction (Spark's sink). Batches travel as one half message to
brokers that know PREPARE_BATCH, and many half messages are ended by one END_TRANSACTIONS.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batonmq.client.delivery import Outgoing
from batonmq.client.hooks import TransactionState
from batonmq.client.message import EncodedBatch, Message
from batonmq.client.transactions import COMMIT_OR_ROLLBACK, TransactionProducer, commit_log_offset_of
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.transactions import TransactionEnd, TransactionEnds
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import QueryMessage
from batonmq.protocol.headers.broker.send import EndTransaction, EndTransactions
from batonmq.protocol.json import encode
from batonmq.protocol.message.batch import first_properties
from batonmq.protocol.message.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_BATCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    find_property,
)
from batonmq.protocol.message.record import MessageExt, decode_records

SAME_KEY: Final = 32
"""Messages of one unique id that a look-up returns."""
_ALWAYS: Final = (0, (1 << 62) - 1)
_FOUND: Final = (int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND))


@dataclass(frozen=True, slots=True)
class Half:
    """An acknowledged half message."""

    broker_name: str
    """The broker set that stored it."""
    queue: MessageQueue
    """Where its messages go."""
    half_offset: int
    commit_log_offset: int
    message_id: str
    """Its unique id; of a batch that of the first message."""

    def end(self) -> TransactionEnd:
        return TransactionEnd(self.half_offset, self.commit_log_offset, self.message_id)


class HalfProducer(TransactionProducer):
    """Prepares, and ends what this or another process has prepared. Requests about a broker set go to its
    master as the route names it; they are not repeated: `NetError.sent` says what may have happened."""

    async def prepare(
        self,
        message: Message | EncodedBatch,
        properties: Mapping[str, str],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> Half:
        """Store a half message, or a batch as one; `properties` are the caller's own, for the half message.

        Raises what `send` raises; REQUEST_CODE_NOT_SUPPORTED for a batch where the broker does not know it.
        """
        system = {
            PROPERTY_TRANSACTION_PREPARED: "true",
            PROPERTY_PRODUCER_GROUP: self.group,
            **properties,
        }
        if isinstance(message, EncodedBatch):
            system[PROPERTY_TRANSACTION_BATCH] = str(message.count)
        sent = await self._send(message, queue=queue, timeout_ms=timeout_ms, system=system)
        return Half(
            sent.broker_name, sent.queue, sent.queue_offset, commit_log_offset_of(sent), sent.message_id
        )

    def _prepare(self, message: Message | Sequence[Message] | EncodedBatch) -> Outgoing:
        if not isinstance(message, EncodedBatch):
            return super()._prepare(message)
        head = Message(message.topic, message.body)
        head.check(self._max_size)
        head.unique_id = first_unique_id(message.body)
        return Outgoing(head, int(RequestCode.PREPARE_BATCH), 0, message.body, head.unique_id)

    async def end_many(
        self, broker: str, topic: str, ends: list[TransactionEnd], state: TransactionState, timeout_ms: float
    ) -> str:
        """Commit or roll back half messages of one broker set together; returns its master's address."""
        header = EndTransactions(self.group, COMMIT_OR_ROLLBACK[state])
        address = await self.master(broker, topic)
        async with self._fresh_route_on_failure(topic):
            await self._session.net.call(
                address, header, encode(TransactionEnds(ends)), timeout_ms=timeout_ms
            )
        return address

    async def end(
        self, broker: str, topic: str, end: TransactionEnd, state: TransactionState, timeout_ms: float
    ) -> str:
        """Commit or roll back one; returns the address of the master."""
        header = EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=end.tran_state_table_offset,
            commit_log_offset=end.commit_log_offset,
            commit_or_rollback=COMMIT_OR_ROLLBACK[state],
            msg_id=end.msg_id,
            topic=topic,
            transaction_id=end.msg_id,
            broker_name=broker,
        )
        address = await self.master(broker, topic)
        async with self._fresh_route_on_failure(topic):
            await self._session.net.call(address, header, timeout_ms=timeout_ms)
        return address

    async def messages_of_id(
        self, broker: str, topic: str, where: str, unique_id: str, timeout_ms: float
    ) -> tuple[str, list[MessageExt]]:
        """(address of the master, its messages in topic `where` with a unique id). The index is a little
        behind the log. `topic`: any of the broker set."""
        begin_ms, end_ms = _ALWAYS
        header = QueryMessage(where, unique_id, SAME_KEY, begin_ms, end_ms)
        address = await self.master(broker, topic)
        async with self._fresh_route_on_failure(topic):
            answer = await self._session.net.call(address, header, timeout_ms=timeout_ms, accept=_FOUND)
        records = decode_records(answer.body, inflate=False) if answer.code == ResponseCode.SUCCESS else []
        return address, [record for record in records if record.message_id == unique_id]

    async def master(self, broker: str, topic: str) -> str:
        """Address of a broker set's master; raises `ConnectFailed` while it has none."""
        route = await self._session.route(topic)
        address = route.master(broker)
        if address is None:
            route = await self._session.refresh_or_known(topic)
            address = route.master(broker)
        if address is None:
            raise ConnectFailed(broker, "has no master now")
        return address

    @contextlib.asynccontextmanager
    async def _fresh_route_on_failure(self, topic: str) -> AsyncIterator[None]:
        try:
            yield
        except (NetError, MQError):
            with contextlib.suppress(NetError, MQError):
                await self._session.refresh_or_known(topic)
            raise


def first_unique_id(batch: bytes | memoryview) -> str:
    """The unique id of the first message of a wire batch. Raises `MQError` if it has none."""
    found = find_property(first_properties(batch), PROPERTY_UNIQUE_KEY.encode())
    if not found:
        raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the first message of the batch has no unique id")
    return found.decode()
