"""A name server and brokers in this process, in memory, that do as the test says.

They speak the real protocol over real sockets, so that the client under test is whole.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.server import RemotingServer
from batonmq.protocol.bodies.clients import (
    ConsumerIdList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import UnregisterClient
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffsetResponse,
    GetMinOffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffsetResponse,
    SearchOffsetResponse,
)
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack, SendMessageResponse, SendMessageV2
from batonmq.protocol.headers.client import NotifyConsumerIdsChanged
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo, GetRouteInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.batch import decode_batch
from batonmq.protocol.message.ids import encode_message_id, pack_host
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record

HOST = pack_host("127.0.0.1", 1)


B = TypeVar("B", bound="FakeBroker")


@dataclass
class Log:
    """What the replicas of one broker name share: a perfect replication."""

    records: dict[MessageQueue, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    position: int = 0
    sent_back: list[ConsumerSendMsgBack] = field(default_factory=list)

    def append(self, topic: str, name: str, message: StoredMessage) -> tuple[int, int]:
        queue = MessageQueue(topic, name, message.queue_id)
        offset, position = len(self.records[queue]), self.position
        record = encode_record(
            message, queue_offset=offset, physical_offset=position, store_timestamp=offset * 1000
        )
        self.records[queue].append(record)
        self.position += len(record)
        return offset, position


class FakeBroker:
    """One replica. `answer` is asked first what to raise for a request code, if anything."""

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.log = log
        self.answer: Callable[[int], Exception | None] = lambda code: None
        self.silent = False
        self.send_code = 0
        self.sends: list[SendMessageV2] = []
        self.heartbeats: list[HeartbeatData] = []
        self.clients: dict[str, list[str]] = defaultdict(list)
        self.left: list[str] = []
        self.locks: dict[MessageQueue, str] = {}
        self.pulls = 0
        self.selected: list[tuple[str | None, str | None]] = []
        """What each pull asked for: subscription, and its type."""
        self._changed = asyncio.Event()
        dispatcher = Dispatcher()
        for code, handler in {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.UPDATE_AND_CREATE_TOPIC: lambda request: Reply(),
            **self.more(),
        }.items():
            dispatcher.on_code(code, self._wrapped(handler))
        self.server = RemotingServer(dispatcher, "127.0.0.1", 0)

    def _wrapped(self, handler):  # type: ignore[no-untyped-def]
        async def wrapped(request: Request) -> Reply | None:
            if self.silent:
                return None
            error = self.answer(request.command.code)
            if error is not None:
                raise error
            outcome = handler(request)
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        return wrapped

    def more(self) -> dict[int, Callable[[Request], object]]:
        """What a test's broker serves beside what all do."""
        return {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def kill(self) -> None:
        """As kill -9: connections are reset, nobody listens any more."""
        for connection in list(self.server.connections):
            connection.abort()

    # -- what it serves

    def _send(self, request: Request) -> Reply:
        header = SendMessageV2.from_ext(request.command.ext)
        self.sends.append(header)
        properties = (header.properties or "").encode()
        body = bytes(request.command.body)
        stored = [
            StoredMessage(
                topic=header.topic,
                queue_id=header.queue_id,
                body=body,
                properties=properties,
                sys_flag=header.sys_flag,
            )
        ]
        if header.batch:
            stored = [
                StoredMessage(
                    topic=header.topic, queue_id=header.queue_id, body=item.body, properties=item.properties
                )
                for item in decode_batch(body)
            ]
        placed = [self.log.append(header.topic, self.name, message) for message in stored]
        self._changed.set()
        self._changed = asyncio.Event()
        ids = ",".join(encode_message_id(HOST, position) for _, position in placed)
        return Reply(SendMessageResponse(ids, header.queue_id, placed[0][0]), code=self.send_code)

    async def _pull(self, request: Request) -> Reply:
        header = PullMessage.from_ext(request.command.ext)
        self.pulls += 1
        self.selected.append((header.subscription, header.expression_type))
        queue = MessageQueue(header.topic, self.name, header.queue_id)
        records = self.log.records[queue]
        if header.queue_offset > len(records):
            return Reply(
                PullMessageResponse(0, len(records), 0, len(records)), code=ResponseCode.PULL_OFFSET_MOVED
            )
        if header.queue_offset == len(records) and header.sys_flag & 2:
            await self._wait()
        found = records[header.queue_offset : header.queue_offset + min(header.max_msg_nums, 32)]
        next_offset = header.queue_offset + len(found)
        return Reply(
            PullMessageResponse(0, next_offset, 0, len(records)),
            found,
            code=0 if found else ResponseCode.PULL_NOT_FOUND,
        )

    async def _wait(self) -> None:
        """Until a message comes, or a while."""
        try:
            async with asyncio.timeout(0.2):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _queue(self, request: Request) -> MessageQueue:
        ext = request.command.ext
        return MessageQueue(ext["topic"], self.name, int(ext["queueId"]))

    def _max_offset(self, request: Request) -> Reply:
        return Reply(GetMaxOffsetResponse(len(self.log.records[self._queue(request)])))

    def _min_offset(self, request: Request) -> Reply:
        return Reply(GetMinOffsetResponse(0))

    def _search(self, request: Request) -> Reply:
        time_ms = int(request.command.ext["timestamp"])
        end = len(self.log.records[self._queue(request)])
        return Reply(SearchOffsetResponse(min(end, -(-time_ms // 1000))))

    def _heartbeat(self, request: Request) -> Reply:
        data = decode(request.command.body, HeartbeatData)
        self.heartbeats.append(data)
        for consumer in data.consumer_data_set:
            if data.client_id not in self.clients[consumer.group_name]:
                self.clients[consumer.group_name].append(data.client_id)
                for connection in list(self.server.connections):
                    connection.oneway(NotifyConsumerIdsChanged(consumer.group_name))
        return Reply()

    def _unregister(self, request: Request) -> Reply:
        header = UnregisterClient.from_ext(request.command.ext)
        self.left.append(header.client_id)
        if header.consumer_group:
            self.clients[header.consumer_group].remove(header.client_id)
            for connection in list(self.server.connections):
                connection.oneway(NotifyConsumerIdsChanged(header.consumer_group))
        return Reply()

    def _list(self, request: Request) -> Reply:
        return Reply(body=encode(ConsumerIdList(self.clients[request.command.ext["consumerGroup"]])))

    def _query_offset(self, request: Request) -> Reply:
        offset = self.log.offsets.get((request.command.ext["consumerGroup"], self._queue(request)))
        if offset is None:
            raise MQError(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return Reply(QueryConsumerOffsetResponse(offset))

    def _update_offset(self, request: Request) -> Reply:
        ext = request.command.ext
        self.log.offsets[ext["consumerGroup"], self._queue(request)] = int(ext["commitOffset"])
        return Reply()

    def _send_back(self, request: Request) -> Reply:
        header = ConsumerSendMsgBack.from_ext(request.command.ext)
        self.log.sent_back.append(header)
        return Reply()

    def _lock(self, request: Request) -> Reply:
        body = decode(request.command.body, LockBatchRequestBody)
        ok = [
            queue for queue in body.mq_set if self.locks.setdefault(queue, body.client_id) == body.client_id
        ]
        return Reply(body=encode(LockBatchResponseBody(ok)))

    def _unlock(self, request: Request) -> Reply:
        body = decode(request.command.body, UnlockBatchRequestBody)
        for queue in body.mq_set:
            if self.locks.get(queue) == body.client_id:
                del self.locks[queue]
        return Reply()


class FakeCluster:
    """A name server, and groups of replicas by broker name."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, int]] = {}
        self.perms: dict[str, int] = {}
        """Permission of a topic, by name; 6 if not given."""
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        """What the brokers of a static topic register, by topic and broker name."""
        self.acting_master = False
        self.silent = False
        """The name server does not answer."""
        self.addresses: dict[str, dict[int, str]] = {}
        self.brokers: list[FakeBroker] = []
        self.logs: dict[str, Log] = {}
        self.asked = 0
        self.dispatcher = Dispatcher()
        """The name server's."""
        self.dispatcher.on(GetRouteInfo, self._route)
        self.dispatcher.on(GetBrokerClusterInfo, self._cluster_info)
        self.server = RemotingServer(self.dispatcher, "127.0.0.1", 0)

    async def __aenter__(self) -> FakeCluster:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.server.stop()
        await self.server.stop()

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def broker(self, name: str, broker_id: int = 0) -> FakeBroker:
        return await self.broker_of(FakeBroker, name, broker_id)

    async def broker_of(self, kind: type[B], name: str, broker_id: int = 0) -> B:
        broker = kind(name, self.logs.setdefault(name, Log()))
        await broker.server.start()
        self.brokers.append(broker)
        self.addresses.setdefault(name, {})[broker_id] = broker.address
        return broker

    def topic(self, topic: str, **queues: int) -> None:
        self.topics[topic] = queues

    def _route(self, request: Request, header: GetRouteInfo) -> Reply | None:
        self.asked += 1
        if self.silent:
            return None
        if header.topic not in self.topics:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"no route info of {header.topic}")
        queues = self.topics[header.topic]
        perm = self.perms.get(header.topic, 6)
        live = {name: count for name, count in queues.items() if self.addresses.get(name)}
        data = TopicRouteData(
            [QueueData(name, count, count, perm) for name, count in live.items()],
            [
                BrokerData("c", name, self.addresses[name], enable_acting_master=self.acting_master)
                for name in live
            ],
            topic_queue_mapping_by_broker=self.mappings.get(header.topic),
        )
        return Reply(body=encode(data))

    def _cluster_info(self, request: Request, header: GetBrokerClusterInfo) -> Reply:
        sets = {name: BrokerData("c", name, ids) for name, ids in self.addresses.items()}
        return Reply(body=encode(ClusterInfo(sets, {"c": list(sets)})))


def properties_of(header: SendMessageV2) -> dict[str, str]:
    return decode_properties(header.properties or "")
