"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), PREPARE_BATCH (60040) and
CONSUMER_SEND_MSG_BACK (36)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.answers import CODE_OF, not_stored
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.messages.send_back import send_back
from batonmq.broker.messages.sender import NO_HOST, SendCall
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.message.properties import (
    PROPERTY_TRANSACTION_BATCH,
    PROPERTY_TRANSACTION_PREPARED,
    property_start,
)
from batonmq.protocol.send.reply import SendReplies
from batonmq.protocol.send.request import fields_of

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.sender import Sender
    from batonmq.store.results import PutResult


_PREPARED: Final = property_start(PROPERTY_TRANSACTION_PREPARED) + b"true"
_BATCH: Final = property_start(PROPERTY_TRANSACTION_BATCH)


class _FrameSend(SendCall):
    """A send from a remoting frame, answered with a frame."""

    __slots__ = ("_handlers", "_request")

    def __init__(self, handlers: SendHandlers, request: Request) -> None:
        self.unique_key = b""
        self.recall_handle = ""
        self.wait = True
        self._handlers = handlers
        self._request = request

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        request = self._request
        if result is None:
            request.fail(not_stored(status, self._handlers.settings.store.max_message_size))
            return
        code = CODE_OF[status]
        if self.recall_handle:
            replies = self._handlers.replies
            ids = replies.message_id(result.physical_offset)
            where = self.queue_id, result.queue_offset, self.unique_key, self.recall_handle
            request.reply_frame(replies.encode_ids(request.command, code, ids, *where), code)
            return
        request.reply_frame(
            self._handlers.replies.encode(
                request.command,
                code,
                result.physical_offset,
                self.queue_id,
                result.queue_offset,
                self.unique_key,
            ),
            code,
        )


class _FrameBatch(_FrameSend):
    """A batch: its answer has the ids of all messages."""

    __slots__ = ()

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if result is None:
            super().stored(status, None)
            return
        request, replies = self._request, self._handlers.replies
        ids = replies.message_ids(result.physical_offsets)
        code = CODE_OF[status]
        request.reply_frame(
            replies.encode_ids(
                request.command, code, ids, self.queue_id, result.queue_offset, self.unique_key
            ),
            code,
        )


class _SendBack:
    """A message that is stored again for `group`; the answer has no fields."""

    __slots__ = ("_handlers", "_request", "group", "topic", "wait")

    def __init__(self, handlers: SendHandlers, request: Request, group: str) -> None:
        self._handlers = handlers
        self._request = request
        self.group = group
        self.topic = ""
        # RocketMQ does not wait for replicas here. We do: the consumer commits the offset of the original
        # after this answer, so the loss of the copy would be the loss of the message.
        self.wait = True

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if status is PutStatus.PUT_OK:
            self._handlers.stats.count_send_back(self.group, self.topic)
            self._request.reply(Reply())
        else:
            self._request.fail(MQError(ResponseCode.SYSTEM_ERROR, status.value))


class SendHandlers:
    """Converts between frames and the calls of `Sender`."""

    def __init__(self, broker: Broker, sender: Sender) -> None:
        self._broker = broker
        self._sender = sender
        self._config = broker.settings.broker
        self.settings = broker.settings
        self.stats = broker.stats
        self.replies = SendReplies(NO_HOST, self._config.region_id, self._config.trace_on)

    def open(self) -> None:
        """The broker's address is known."""
        self.replies = SendReplies(self._sender.store_host, self._config.region_id, self._config.trace_on)

    def register(self, dispatcher: Dispatcher) -> None:
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            dispatcher.on_code(code, self.on_send)
        dispatcher.on_code(RequestCode.PREPARE_BATCH, self.on_prepare_batch)
        dispatcher.on(ConsumerSendMsgBack, self.on_send_back)

    def on_send(self, request: Request) -> None:
        """One message or a batch, in any of the three codes."""
        command = request.command
        fields = fields_of(command)
        call = _FrameBatch(self, request) if fields.batch else _FrameSend(self, request)
        self._sender.send(fields, command.body, request.connection.peer, command.version, call)

    def on_prepare_batch(self, request: Request) -> None:
        """A batch as one half message; without the two properties that make it one it would be visible."""
        fields = fields_of(request.command)
        if fields.batch or _PREPARED not in fields.properties or _BATCH not in fields.properties:
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL, "header and properties are not those of a half message"
            )
        self.on_send(request)

    def on_send_back(self, request: Request, header: ConsumerSendMsgBack) -> Reply | None:
        call = _SendBack(self, request, header.group)
        topic = send_back(self._broker, header, request.command.version, call)
        if topic is None:
            return Reply()
        call.topic = topic
        return None
