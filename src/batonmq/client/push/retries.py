"""What becomes of a message whose handler failed."""

from __future__ import annotations

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.message.record import MessageExt
from batonmq.routing.session import Session

DEFAULT_MAX_RECONSUME = 16


class RetryLater(Exception):
    """Raised by a handler: deliver this message again later.

    ``delay_level`` is one of the broker's `messageDelayLevel` (1 is 1 s, 3 is 10 s, …); 0 lets the broker
    choose by the number of attempts, -1 sends it to the dead letter topic. Any other exception means 0.
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
        """Raises `MQError` or `NetError` when the broker did not take it."""
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._limit,
        )
        await self._session.call_master(queue.broker_name, queue.topic, header, timeout_ms=3_000)
