"""Sends a message back whose handler failed: for a retry, or to the dead letters."""

from __future__ import annotations

from batonmq.client.push.tasks import log
from batonmq.net.errors import ConnectFailed
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.compression import CompressionType, compress
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack, SendMessageV2
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    encode_properties,
)
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES, retry_topic
from batonmq.routing.session import Session
from batonmq.routing.static_topics import is_mock

DEFAULT_MAX_RECONSUME = 16
DEAD_LETTER = -1
"""Delay level of a message that goes to the dead-letter topic at once."""
COMPRESS_OVER = 4096
"""A body of more bytes, which may have been inflated here, is sent compressed."""
_CALL_MS = 3_000
_NOT_AGAIN = frozenset({PROPERTY_DELAY_LEVEL, PROPERTY_MIN_OFFSET, PROPERTY_TRANSACTION_PREPARED})
"""Properties that a message does not keep when it is sent again."""
_STORED = frozenset({"FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT"})
"""Remarks of a broker that stored the message, but not safely yet."""
_COMPRESSION = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


class RetryLater(Exception):
    """Raised by a handler: deliver this message again later.

    ``delay_level`` is one of the broker's `messageDelayLevel` (1 is 1 s, 3 is 10 s, …); 0 lets the broker
    choose by the number of attempts, -1 sends it to the dead letter topic. Any other exception means 0.
    A `Consumer` with ``orderly=True`` knows only -1: it tries again in place, after ``suspend_ms``.
    """

    __module__ = "batonmq.client.consumer"  # where users import it from, and so find it in a traceback

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"delay level {delay_level}")
        self.delay_level = delay_level


class SendBack:
    """Gives a message back to its broker: for the retry topic, or the dead letters after so many attempts."""

    def __init__(self, session: Session, group: str, max_reconsume_times: int | None) -> None:
        self._session = session
        self._group = group
        self._limit = DEFAULT_MAX_RECONSUME if max_reconsume_times is None else max_reconsume_times

    async def __call__(self, queue: MessageQueue, message: MessageExt, level: int) -> None:
        """Raises `MQError` or `NetError` when no broker took it."""
        if is_mock(queue.broker_name):
            await self._send_again(message, level)
            return
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._limit,
        )
        try:
            await self._session.call_for(queue, header, timeout_ms=_CALL_MS)
        except MQError as error:
            if error.remark in _STORED:
                raise
            # The broker may no longer have the message: it expired, or a failover lost it.
            log.info("message %s is sent again whole: %s", message.message_id, error)
            await self._send_again(message, level)

    async def _send_again(self, message: MessageExt, level: int) -> None:
        """Send a message to the retry topic, of whichever broker: the one that leads a logical queue need not
        be the one that has the message. Over the limit its broker makes it a dead letter."""
        topic, session = retry_topic(self._group), self._session
        queues = (await session.route(topic)).write_queues
        if not queues:
            raise ConnectFailed(topic, "no broker has a master")
        queue = session.rng.choice(queues)
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_AGAIN}
        properties[PROPERTY_RETRY_TOPIC] = message.topic
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        attempts = message.reconsume_times + 1
        if level < 0:
            attempts = max(attempts, self._limit + 1)
        else:
            properties[PROPERTY_DELAY_LEVEL] = str(level or 2 + attempts)
        body, compression = message.body, message.sys_flag & _COMPRESSION
        if not compression and len(body) > COMPRESS_OVER:
            body, compression = compress(body, CompressionType.ZLIB), CompressionType.ZLIB.sys_flag
        try:
            encoded = encode_properties(properties).decode()
        except MessageFormatError as error:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        header = SendMessageV2(
            producer_group=self._group,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=compression,
            born_timestamp=session.clock.now_ms(),
            flag=message.flag,
            properties=encoded,
            reconsume_times=attempts,
            max_reconsume_times=self._limit,
        )
        await session.call_for(queue, header, body, timeout_ms=_CALL_MS)
