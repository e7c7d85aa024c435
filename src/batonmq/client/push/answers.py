"""Answers of consumers of every kind to the tools behind a broker."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import traceback

from batonmq.client.push.handlers import Handlers
from batonmq.client.push.retries import RetryLater
from batonmq.client.push.subscriptions import Subscriptions
from batonmq.client.push.tasks import log
from batonmq.client.session import ClientSession
from batonmq.common.clock import Clock
from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.bodies.clients import ConsumeMessageDirectlyResult, ConsumeResult, ConsumeType
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.headers.client import ConsumeMessageDirectly
from batonmq.protocol.json import encode
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import PROPERTY_RETRY_TOPIC
from batonmq.protocol.message.record import decode_record
from batonmq.protocol.versions import PROTOCOL_VERSION


def running_properties(
    session: ClientSession, start_ms: int, consume_type: ConsumeType, *, orderly: bool, concurrency: int
) -> dict[str, str]:
    """Properties of a `ConsumerRunningInfo`, named as in RocketMQ's class of that name."""
    return {
        "PROP_CLIENT_VERSION": f"BatonMQ/{PROTOCOL_VERSION}",
        "PROP_CONSUMEORDERLY": str(orderly).lower(),
        "PROP_CONSUMER_START_TIMESTAMP": str(start_ms),
        "PROP_CONSUME_TYPE": consume_type.value,
        "PROP_NAMESERVER_ADDR": ";".join(session.name_servers.addresses),
        "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
    }


MOST_STACKS = 200
"""Tasks, and threads, whose stacks are shown."""
_FRAMES = 12
"""Of each stack, the innermost ones."""


def stacks() -> str:
    """What the tasks of this loop and the threads of this process do: jstack of a `ConsumerRunningInfo`."""
    lines: list[str] = []
    for task in itertools.islice(asyncio.all_tasks(), MOST_STACKS):
        lines.append(f"task {task.get_name()}")
        lines += [
            f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            for frame in task.get_stack(limit=_FRAMES)
        ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in itertools.islice(sys._current_frames().items(), MOST_STACKS):
        lines.append(f"thread {names.get(number, number)}")
        summary = traceback.extract_stack(frame, _FRAMES)
        lines += [f"  {each.filename}:{each.lineno} {each.name}" for each in reversed(summary)]
    return "\n".join(lines)


async def consume_directly(
    request: Request,
    header: ConsumeMessageDirectly,
    *,
    handlers: Handlers,
    subscriptions: Subscriptions,
    orderly: bool,
    clock: Clock,
) -> Reply:
    """mqadmin queryMsgById -g: have the handler try this message now.

    Nothing is committed, acknowledged or sent back.
    """
    began_ms = clock.monotonic_ms()
    result = ConsumeMessageDirectlyResult(order=orderly)
    try:
        message = decode_record(request.command.body)
        subscription = subscriptions.get(message.properties.get(PROPERTY_RETRY_TOPIC) or message.topic)
        if subscription is None:
            raise LookupError(f"no handler for {message.topic}")
        await handlers.call(subscription, [message])
        result.consume_result = ConsumeResult.SUCCESS
    except RetryLater as later:
        result.consume_result, result.remark = ConsumeResult.LATER, str(later)
    except Exception as error:
        if isinstance(error, (MessageFormatError, CompressionError)):
            log.warning("a tool sent a message that cannot be read: %s", error)
        else:
            log.exception("handler failed on %s, which a tool sent", header.msg_id)
        result.consume_result = ConsumeResult.THROW_EXCEPTION
        result.remark = f"{type(error).__name__}: {error}"
    result.spent_time_mills = clock.monotonic_ms() - began_ms
    return Reply(body=encode(result))
