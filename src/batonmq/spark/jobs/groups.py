"""Finds the topics that a consumer group has consumed, as the brokers know it."""

from __future__ import annotations

from collections.abc import Iterable

from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.statistics import ConsumeStats
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetConsumeStats, QueryTopicsByConsumer
from batonmq.protocol.json import decode
from batonmq.routing.session import Session


async def consumed_topics(session: Session, masters: Iterable[str], group: str) -> set[str]:
    """Topics in which a group has committed an offset. Raises `MQError`, `NetError`.

    Other questions do not tell: brokers make a group whose configuration they are asked for, and answer 0 for
    the offset of any group in a queue that has its first message."""
    found: set[str] = set()
    for address in masters:
        try:
            answer = await session.net.call(address, QueryTopicsByConsumer(group=group))
            found |= set(decode(bytes(answer.body), TopicList).topic_list)
        except MQError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            answer = await session.net.call(address, GetConsumeStats(consumer_group=group))  # RocketMQ 4.9
            found |= {queue.topic for queue in decode(bytes(answer.body), ConsumeStats).offset_table}
    return found
