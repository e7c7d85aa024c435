"""Consumer offsets: reset to a time or an offset, copied between groups."""

from __future__ import annotations

from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import ResetOffsetBody
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode
from batonmq.protocol.names import retry_topic


async def reset(
    admin: Admin,
    group: str,
    topic: str,
    time_ms: int,
    *,
    force: bool = True,
    broker: str | None = None,
    queue_id: int | None = None,
    offset: int | None = None,
) -> dict[MessageQueue, int]:
    """Let a group go on from the first message stored at a time; -1 is the end. Returns the new offsets.

    Args:
        force: also where the group has not come so far yet.
        broker: address of the only broker to do it at; None: all of the topic.
        queue_id: the only queue; None: all.
        offset: of that queue, instead of the time.
    """
    header = wire.ResetOffset(
        group=group,
        topic=topic,
        timestamp=time_ms,
        is_force=force,
        queue_id=-1 if queue_id is None else queue_id,
        offset=offset,
    )
    brokers = [broker] if broker else (await admin.masters_of_topic(topic)).values()
    offsets: dict[MessageQueue, int] = {}
    for address in brokers:
        answer = await admin.ask(address, header)
        offsets |= dict(sorted(decode(bytes(answer.body), ResetOffsetBody).offset_table.items()))
    return offsets


async def clone(
    admin: Admin, source: str, target: str, *, topic: str | None = None, offline: bool = False
) -> list[str]:
    """Give the group `target` the offsets of `source` at every broker of that; the brokers' addresses.

    Args:
        topic: the only one; None: all that `source` subscribes to.
        offline: also topics that it does not subscribe to now.
    """
    header = wire.CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
    brokers = list((await admin.masters_of_topic(retry_topic(source))).values())
    for address in brokers:
        await admin.ask(address, header)
    return brokers
