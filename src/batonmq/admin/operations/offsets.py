"""Consumer offsets: reset to a time or an offset, copied between groups."""

from __future__ import annotations

from dataclasses import dataclass

from batonmq.admin.operations import groups
from batonmq.admin.session import Admin, AdminError, naming
from batonmq.protocol.bodies.clients import GetConsumerStatusBody, ResetOffsetBody
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.headers.broker import pull
from batonmq.protocol.json import decode
from batonmq.protocol.names import retry_topic


@dataclass(frozen=True, slots=True)
class Rollback:
    """What `reset_committed` did in one queue (`RollbackStats`)."""

    queue: MessageQueue
    broker_offset: int
    """The offset that the next message gets."""
    consumer_offset: int
    """What the group had committed."""
    timestamp_offset: int
    """The first message of the time."""
    rollback_offset: int
    """What is committed now."""


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
    """Let a group continue from the first message stored at a time; -1 is the end. Returns the new offsets.

    Args:
        force: also move offsets forward, which skips messages.
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
    for answer in (await admin.ask_each(brokers, header)).values():
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
    brokers = (await admin.masters_of_topic(retry_topic(source))).values()
    return list(await admin.ask_each(brokers, header))


async def reset_committed(
    admin: Admin, group: str, topic: str, time_ms: int, *, force: bool = True
) -> list[Rollback]:
    """Commit a group's offsets for a time (-1 is the end) in its place: for groups without connected clients,
    which would commit theirs again. Queues in which the group has no offset are left out.

    Args:
        force: also move offsets forward, which skips messages.
    """
    done: list[Rollback] = []
    route = await admin.queues(topic)
    tables = (await groups.offset_tables(admin, group, topic)).values()
    progress = {queue: at for table in tables for queue, at in table.offset_table.items()}
    moved: list[MessageQueue] = []
    with naming(moved):
        for queue, at in sorted(progress.items(), key=lambda item: item[0]):
            address = route.replica(route.broker_of(queue))
            if address is None:
                raise AdminError(f"no broker serves {queue}")
            target = at.broker_offset
            if time_ms != -1:
                found = await admin.ask(
                    address, pull.SearchOffset(topic=topic, queue_id=queue.queue_id, timestamp=time_ms)
                )
                assert isinstance(found.header, pull.SearchOffsetResponse)
                target = found.header.offset
            now = at.consumer_offset
            if force or target <= now:
                now = target
                await admin.ask(address, pull.UpdateConsumerOffset(group, topic, queue.queue_id, now))
                moved.append(queue)
            done.append(Rollback(queue, at.broker_offset, at.consumer_offset, target, now))
    return done


async def skip(
    admin: Admin, group: str, topic: str, *, force: bool = True
) -> dict[MessageQueue, int] | list[Rollback]:
    """Let a group continue at the end of all queues, with or without connected clients. The result of
    `reset`, or of `reset_committed` at brokers that reset in clients only."""
    try:
        return await reset(admin, group, topic, -1, force=force)
    except MQError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return await reset_committed(admin, group, topic, -1, force=force)


async def of_clients(
    admin: Admin, group: str, topic: str, client_id: str | None = None
) -> dict[str, dict[MessageQueue, int]]:
    """Client id -> queue -> offset, as the connected clients of a group say; of one client or all."""
    header = wire.GetConsumerStatus(topic=topic, group=group, client_addr=client_id)
    answer = await admin.ask(await admin.a_broker_of(topic), header)
    return decode(bytes(answer.body), GetConsumerStatusBody).consumer_table
