"""GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61) and RECALL_MESSAGE (370).

Source: RocketMQ's `AdminBrokerProcessor` and `RecallMessageProcessor`; codes and remarks are theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.internal import put
from batonmq.broker.messages.sender import NO_HOST
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import Perm, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint, GetTimerMetrics
from batonmq.protocol.headers.broker.send import RecallMessage, RecallMessageResponse
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.properties import (
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_MSG_REGION,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    encode_properties,
)
from batonmq.protocol.message.recall import RecallHandle, decode_recall_handle
from batonmq.protocol.message.record import StoredMessage

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.timer.service import TimerService
    from batonmq.broker.timer.timing import TimingCounts

TAG: Final = "_RECALL_TAG_"
_UNAVAILABLE: Final = "recall failed, broker service not available"


class TimerHandlers:
    """The requests for one broker's timer."""

    def __init__(self, broker: Broker, service: TimerService, timing: TimingCounts) -> None:
        self._broker = broker
        self._service = service
        self._timing = timing

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(GetTimerCheckPoint, self._checkpoint)
        dispatcher.on(GetTimerMetrics, self._metrics)
        dispatcher.on(RecallMessage, self._recall)

    def _checkpoint(self, request: Request, header: GetTimerCheckPoint) -> Reply:
        if not self._broker.settings.broker.timer_wheel_enable:
            raise MQError(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return Reply(body=self._service.checkpoint())

    def _metrics(self, request: Request, header: GetTimerMetrics) -> Reply:
        if not self._broker.settings.broker.timer_wheel_enable:
            raise MQError(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return Reply(body=self._timing.encode())

    async def _recall(self, request: Request, header: RecallMessage) -> Reply:
        region = {PROPERTY_MSG_REGION: self._broker.settings.broker.region_id}  # clients trace recalls by it
        try:
            key = await self._recalled(request, header)
        except MQError as error:
            raise MQError(error.code, error.remark, region) from None
        return Reply(ext={**RecallMessageResponse(msg_id=key).to_ext(), **region})

    async def _recalled(self, request: Request, header: RecallMessage) -> str:
        """The unique key of the message. Raises `MQError`."""
        self._check(header)
        try:
            handle = decode_recall_handle(header.recall_handle)
        except MessageFormatError as error:
            raise MQError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        self._check_handle(header, handle)
        broker = self._broker
        properties = self._properties(header, handle)
        message = StoredMessage(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            born_timestamp=broker.clock.now_ms(),
            born_host=_host(request.connection.peer),
            store_host=_host(broker.address),
        )
        try:
            message.properties = encode_properties(properties)
            stored = broker.redirects.apply(message, properties)
        except (MessageFormatError, MQError):
            stored = None
        outcome = None if stored is None else await put(broker.appender, stored)
        if outcome is None or outcome.result is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
        return handle.unique_key

    def _check(self, header: RecallMessage) -> None:
        broker, config = self._broker, self._broker.settings.broker
        if not config.recall_message_enable:
            raise MQError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not broker.role.is_master:
            raise MQError(ResponseCode.SLAVE_NOT_AVAILABLE, _UNAVAILABLE)
        writable = config.broker_permission & Perm.WRITE or config.allow_recall_when_broker_not_writeable
        if broker.clock.now_ms() < config.start_accept_send_request_time_stamp or not writable:
            raise MQError(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
        if header.topic not in broker.tables.topics:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")

    def _check_handle(self, header: RecallMessage, handle: RecallHandle) -> None:
        config = self._broker.settings.broker
        if handle.topic != header.topic:
            raise MQError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise MQError(ResponseCode.ILLEGAL_OPERATION, _UNAVAILABLE)
        text = handle.timestamp
        timestamp = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
        left_ms = timestamp - self._broker.clock.now_ms()
        if left_ms <= 0 or left_ms >= config.timer_max_delay_sec * 1_000:
            raise MQError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")

    def _properties(self, header: RecallMessage, handle: RecallHandle) -> dict[str, str]:
        key = handle.unique_key
        if self._broker.settings.broker.append_topic_for_timer_delete_key:
            key = f"{handle.topic}+{key}"
        properties = {
            PROPERTY_TAGS: TAG,
            PROPERTY_TIMER_DELETE_UNIQUE_KEY: key,
            PROPERTY_UNIQUE_KEY: handle.unique_key,
            PROPERTY_TIMER_DELIVER_MS: handle.timestamp,
            PROPERTY_BORN_TIMESTAMP: str(self._broker.clock.now_ms()),
        }
        if header.producer_group:
            properties[PROPERTY_PRODUCER_GROUP] = header.producer_group
        return properties


def _host(address: str) -> bytes:
    try:
        return pack_address(address)
    except ValueError:
        return NO_HOST
