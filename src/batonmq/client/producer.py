"""Sending messages.

A send picks a queue, asks its broker's master to store the message, and returns when that is acknowledged
(`delivery.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from batonmq.client.batches import check_one_key, encode_messages
from batonmq.client.delivery import Delivery, Outgoing, QueueChoice, Selector, check_writable, no_master
from batonmq.client.hooks import Hook, Hooks, Sending, SendKind, around
from batonmq.client.message import EncodedBatch, Message, SendResult
from batonmq.client.producer_heartbeats import ProducerHeartbeats
from batonmq.client.replies import Replies, Requests
from batonmq.client.session import ClientSession
from batonmq.common.clock import Clock
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionType, compress
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import (
    RecallMessage,
    RecallMessageResponse,
    SendMessageV2,
)
from batonmq.protocol.message.ids import UniqueIds
from batonmq.protocol.message.properties import (
    PROPERTY_TRANSACTION_PREPARED,
)
from batonmq.protocol.message.recall import decode_recall_handle
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import check_group
from batonmq.protocol.send.request import send_ext
from batonmq.protocol.signing import Credentials
from batonmq.routing.name_servers import NoNameServer
from batonmq.routing.overdue import OverdueCalls
from batonmq.routing.picker import QueuePicker
from batonmq.routing.routes import TopicRoute


class Producer:
    """Sends messages; an asynchronous context manager.

    Args:
        group: producer group, as `mqadmin producerConnection` shows it.
        namesrv: ``host:port``, several joined by ``;``.
        send_timeout_ms: how long `send` may take with all its attempts.
        attempt_timeout_ms: how long one attempt waits for its answer; None is all that is left.
        retries: attempts after the first that a broker's own refusal may cost (overload, an internal error,
            and, unless the caller chose the queue, no permission to write). A broker that is gone or no
            longer master does not count: it is tried again until the timeout.
        compress_over: bodies of more bytes are compressed; 0 never does.
        compression: the algorithm; consumers need no setting.
        max_message_size: the brokers' `maxMessageSize`, bytes.
        poll_interval_ms: how often the route is asked for when nothing fails.
        client_ip: this machine's address in client and message ids; found out when None.
        auto_create: send to unknown topics, which brokers with `autoCreateTopicEnable` create.
        hooks: code around each send (`client/hooks.py`): traces, metrics.
        tls: use TLS to name servers and brokers; RocketMQ's certificates name no hosts as a rule, so that
            `check_hostname` must be off (docs/client.md, TLS).
        credentials: sign all requests, for clusters with access control (docs/access-control.md).
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        send_timeout_ms: int = 3_000,
        attempt_timeout_ms: int | None = None,
        retries: int = 2,
        compress_over: int = 4096,
        compression: CompressionType = CompressionType.ZLIB,
        compression_level: int = 5,
        max_message_size: int = 4 * 1024 * 1024,
        auto_create: bool = True,
        poll_interval_ms: int = 30_000,
        client_ip: str | None = None,
        hooks: Iterable[Hook] = (),
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        remoting: RemotingClient | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self._hooks: Hooks = tuple(hooks)
        self._dispatcher = Dispatcher()
        self._session = ClientSession(
            namesrv,
            dispatcher=self._dispatcher,
            tls=tls,
            credentials=credentials,
            clock=clock,
            rng=rng,
            poll_interval_ms=poll_interval_ms,
            remoting=remoting,
            ip=client_ip,
        )
        self._session.on_route = self._route_changed
        self._calls = OverdueCalls(self._session)
        self._timeout_ms = send_timeout_ms
        self._compress_over = compress_over
        self._compression = compression
        self._compression_level = compression_level
        self._max_size = max_message_size
        self._auto_create = auto_create
        rng = self._session.rng
        self._ids = UniqueIds(self._session.ip, os.getpid(), rng.getrandbits(32))
        self._heartbeats = ProducerHeartbeats(self._session, group)
        self._delivery = Delivery(
            self._session,
            group,
            QueuePicker(rng.randrange(1 << 16)),
            self._calls,
            self._heartbeats,
            retries=retries,
            attempt_timeout_ms=attempt_timeout_ms,
            auto_create=auto_create,
        )
        self._requests = Requests(self._session)
        self._requests.bind(self._dispatcher)
        self._replies: Replies | None = None

    async def start(self) -> None:
        """Check that a name server can be reached; ``async with`` does it. Without it the first `send` does.

        Raises `NoNameServer`, after a few seconds; the producer is closed then.
        """
        try:
            await self._session.name_servers.connect()
        except NoNameServer:
            await self.close()
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    async def close(self) -> None:
        """Leave the group and close all connections. Sends under way fail (`SendFailed`)."""
        if self._session.closed:
            return
        self._requests.close()
        await self._heartbeats.close()
        await self._calls.close()
        await self._session.close()

    # -- sending

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Queues of a topic that can be written to now. Raises `TopicNotExistError`, `NetError`."""
        return list((await self._session.refresh(topic)).write_queues)

    async def send(
        self,
        message: Message | Sequence[Message] | EncodedBatch,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message, or several of one topic as one batch, and wait for the acknowledgement.

        ``queue``, ``selector`` or the message's sharding key decides where to; otherwise all queues take
        turns. The messages of a batch have one key; ``selector`` gets the first of them. Messages that must
        keep their order are sent one after the other to one queue.

        Raises:
            MQError: a broker refused it, or would (MESSAGE_ILLEGAL, checked before sending); the topic has no
                writable queue (NO_PERMISSION).
            NotSafelyStored: the master has it, but the disk or the replicas did not follow in time.
            SendFailed: no acknowledgement within the timeout, or before the producer was closed; the message
                may be stored or not.
            TopicNotExistError: nobody knows the topic (and ``auto_create`` does not help).
        """
        if not self._hooks:
            return await self._deliver(message, queue, selector, timeout_ms, None, None)
        return await self._send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)

    async def _send(
        self,
        message: Message | Sequence[Message] | EncodedBatch,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
        system: Mapping[str, str] | None = None,
    ) -> SendResult:
        """`send`; ``system`` are properties that the client adds. Hooks do not see an `EncodedBatch`."""
        if not self._hooks or isinstance(message, EncodedBatch):
            return await self._deliver(message, queue, selector, timeout_ms, system, None)
        messages = [message] if isinstance(message, Message) else list(message)
        if not messages:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        head = messages[0]
        kind = SendKind.DELAYED if head.delayed else SendKind.NORMAL
        if system and PROPERTY_TRANSACTION_PREPARED in system:
            kind = SendKind.HALF
        elif kind is SendKind.NORMAL and head.sharding_key is not None:
            kind = SendKind.ORDERED
        sending = Sending(head.topic, self.group, self.client_id, messages, kind)
        with around(lambda hook: hook.sending(sending), self._hooks):
            sending.result = await self._deliver(message, queue, selector, timeout_ms, system, sending)
            return sending.result

    async def _deliver(
        self,
        message: Message | Sequence[Message] | EncodedBatch,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
        system: Mapping[str, str] | None,
        sending: Sending | None,
    ) -> SendResult:
        if not isinstance(message, Message | EncodedBatch):
            message = list(message)
        outgoing = self._prepare(message)
        leading = outgoing.head
        if isinstance(message, list):
            leading = message[0]
            if queue is None and selector is None:
                check_one_key(message)
        if system and PROPERTY_TRANSACTION_PREPARED in system:
            outgoing = replace(outgoing, sys_flag=outgoing.sys_flag | MessageSysFlag.TRANSACTION_PREPARED)
        return await self._delivery.send(
            outgoing,
            QueueChoice(leading, queue, selector),
            self._timeout_ms if timeout_ms is None else timeout_ms,
            system or {},
            sending,
        )

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without waiting for an acknowledgement: a lost message is not reported.

        Waits while the broker takes less than is sent, at most ``send_timeout_ms``. `close` sends what is
        collected. Raises `MQError` for a message that no broker would take, `NetError` when there is no
        connection or the broker takes nothing.
        """
        outgoing = self._prepare(message)
        head = outgoing.head
        route = await self._session.route(head.topic, fallback=self._auto_create)
        if route.read_only and queue is None:
            route = await self._session.refresh(head.topic)
            check_writable(head.topic, route)
        target = self._delivery.target(route, QueueChoice(head, queue))
        broker = route.broker_of(target) if target is not None else ""
        address = route.master(broker)
        if target is None or address is None:
            raise no_master(head.topic, route, target)
        session = self._session
        fields = send_ext(
            self.group,
            head.topic,
            broker,
            target.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=str(session.clock.now_ms()),
            flag=head.flag,
            properties=head.encoded_properties().decode(),
            batch=False,
        )
        await session.net.oneway(
            address, SendMessageV2.from_ext(fields), outgoing.body, room_within_ms=self._timeout_ms
        )

    # -- more than sending

    async def recall(self, topic: str, handle: str, *, timeout_ms: int = 3_000) -> str:
        """Cancel a delayed message; returns its unique id. ``handle`` is its `SendResult.recall_handle`.

        Brokers with `recallMessageEnable=true` take it, until the message is due.

        Raises:
            ValueError: that is not a handle, or one of another topic.
            MQError: the broker refused it (NO_PERMISSION where recalling is off).
            NetError: the broker did not answer within the timeout.
        """
        known = decode_recall_handle(handle)
        if known.topic != topic:
            raise ValueError(f"the recall handle belongs to topic {known.topic}, not {topic}")
        answer = await self._session.call_master(
            known.broker_name, topic, RecallMessage(topic, handle, self.group), timeout_ms=timeout_ms
        )
        assert isinstance(answer.header, RecallMessageResponse)
        return answer.header.msg_id

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int = 3_000,
    ) -> MessageExt:
        """Send a message and wait for the reply of whoever consumes it (`Consumer.reply`).

        The timeout covers both. Raises what `send` raises, `ReplyTimeout`, and `NetError` when the producer
        is closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        correlation_id, system = self._requests.begin(timeout_ms)
        try:
            await self._send(message, queue=queue, selector=selector, timeout_ms=timeout_ms, system=system)
            return await self._requests.reply(correlation_id, message.topic, deadline - loop.time())
        finally:
            self._requests.end(correlation_id)

    async def reply(
        self,
        message: MessageExt,
        body: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = 3_000,
    ) -> None:
        """Reply to a request message. Returns when a broker has passed the reply on.

        Raises:
            ValueError: the message is not a request.
            MQError: no broker could pass it on: the requester is gone, or its time is over.
            NetError: no broker answered.
        """
        if self._replies is None:
            self._replies = Replies(self._session, self.group)
        await self._replies.send(message, body, properties, timeout_ms)

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self._heartbeats.route_changed(route)

    def _prepare(self, message: Message | Sequence[Message] | EncodedBatch) -> Outgoing:
        """Check and encode."""
        now_ms = self._session.clock.now_ms()
        if isinstance(message, Message):
            message.check(self._max_size)
            if message.unique_id is None:
                message.unique_id = self._ids.next(now_ms)
            # A copy if it is not bytes: it may wait to be written when the caller uses its buffer again.
            body = bytes(message.body)
            sys_flag = 0
            if self._compress_over and len(body) > self._compress_over:
                packed = compress(body, self._compression, self._compression_level)
                if len(packed) < len(body):  # else it may be over the brokers' limit, which the body is not
                    body, sys_flag = packed, self._compression.sys_flag
            return Outgoing(message, int(RequestCode.SEND_MESSAGE_V2), sys_flag, body, message.unique_id)
        if isinstance(message, EncodedBatch):
            head = Message(message.topic, message.body)
            head.check(self._max_size)
            return Outgoing(head, int(RequestCode.SEND_BATCH_MESSAGE), 0, message.body, "")
        head, body, ids = encode_messages(message, self._max_size, lambda: self._ids.next(now_ms))
        return Outgoing(head, int(RequestCode.SEND_BATCH_MESSAGE), 0, body, ids)
