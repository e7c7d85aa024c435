"""Metrics of messages in and out, from the counters of `stats.py`. Source: RocketMQ's
`BrokerMetricsConstant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from batonmq.broker.stats import POPPED
from batonmq.common.metrics import Kind, Metric, Point, Source
from batonmq.protocol.bodies.statistics import GROUP_GET_NUMS, GROUP_GET_SIZE, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from batonmq.protocol.names import (
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    is_dead_letter_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_system", "is_retry")
"""``is_retry`` is empty for pulls: RocketMQ sets it for pops only."""

MESSAGES_IN: Final = Metric("rocketmq_messages_in_total", Kind.COUNTER, "Messages stored", _IN)
BYTES_IN: Final = Metric("rocketmq_throughput_in_total", Kind.COUNTER, "Bytes stored", _IN)
MESSAGES_OUT: Final = Metric(
    "rocketmq_messages_out_total", Kind.COUNTER, "Messages handed to consumers", _OUT
)
BYTES_OUT: Final = Metric("rocketmq_throughput_out_total", Kind.COUNTER, "Bytes handed to consumers", _OUT)
WATERMARK: Final = Metric(
    "rocketmq_processor_watermark",
    Kind.GAUGE,
    "Sends that wait for replicas or disk (processor=send)",
    ("processor",),
)
METRICS: Final = (MESSAGES_IN, BYTES_IN, MESSAGES_OUT, BYTES_OUT, WATERMARK)


class MessageMetrics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def sources(self) -> Mapping[Metric, Source]:
        return {
            MESSAGES_IN: lambda: self._received(TOPIC_PUT_NUMS),
            BYTES_IN: lambda: self._received(TOPIC_PUT_SIZE),
            MESSAGES_OUT: lambda: self._delivered(
                GROUP_GET_NUMS, {retry: names.messages for retry, names in POPPED.items()}
            ),
            BYTES_OUT: lambda: self._delivered(
                GROUP_GET_SIZE, {retry: names.size for retry, names in POPPED.items()}
            ),
            WATERMARK: lambda: [(("send",), self._broker.appender.backlog)],
        }

    def _received(self, name: str) -> Iterable[Point]:
        for topic, total in self._broker.stats.totals(name):
            if not (is_retry_topic(topic) or is_dead_letter_topic(topic)):
                yield (topic, self._message_type(topic), is_system_topic(topic)), total

    def _message_type(self, topic: str) -> str:
        """Derived from the topic; RocketMQ checks each message. All messages of a FIFO topic count as
        fifo."""
        if topic == SCHEDULE_TOPIC:
            return "delay"
        if topic == TRANS_HALF_TOPIC:
            return "transaction"
        config = self._broker.tables.topics.get(topic)
        declared = "" if config is None else config.attributes.get("message.type", "")
        return declared.lower() if declared and declared != "UNSPECIFIED" else "normal"

    def _delivered(self, name: str, popped: Mapping[bool, str]) -> Iterable[Point]:
        stats = self._broker.stats
        for key, total in stats.totals(name):
            topic, _, group = key.rpartition("@")
            if is_retry_topic(topic) or is_dead_letter_topic(topic):
                continue
            labels = (topic, group, is_system_topic(topic) or is_system_group(group))
            for retry, counted in popped.items():
                counter = stats.find(counted, key)
                if counter is not None:
                    total -= counter.total
                    yield (*labels, retry), counter.total
            if total:
                yield (*labels, ""), total
