"""Operations of an administrator as a Python program uses them: what they return is data."""

from __future__ import annotations

import pytest
from tests.integration.test_admin_commands import Run, cluster

from batonmq import Admin as ClientAdmin
from batonmq import Message
from batonmq.admin.operations import brokers, groups, messages, offsets, topics
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import RegisterTopicInNamesrv
from batonmq.protocol.json import encode
from batonmq.protocol.names import pop_retry_topic

__all__ = ["cluster"]
QUEUE = MessageQueue("Orders", "broker-a", 0)


async def namesrv_of(run: Run) -> str:
    (row,) = [row for row in await run("getNamesrvConfig") if row["key"] == "listenPort"]
    (address,) = row.keys() - {"key"}
    return str(address)


async def test_operations_return_data(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    async with Admin(await namesrv_of(run)) as admin:
        await topics.create(admin, [broker], "Orders", read_queues=1, write_queues=1)
        (queues,) = await topics.route(admin, "Orders")
        assert (queues.broker, queues.read_queues, queues.addresses) == ("broker-a", 1, {0: broker})

        sent = await messages.send(admin, Message("Orders", b"hello", keys=["k"]), QUEUE)
        await messages.send(admin, Message("Orders", b"again"), QUEUE)
        assert [m.body for m in await messages.read(admin, "Orders", 10)] == [b"hello", b"again"]
        assert (await messages.by_offset_id(admin, sent.offset_message_id)).body == b"hello"
        assert [m.body for m in await messages.by_key(admin, "Orders", "k", 10)] == [b"hello"]
        (status,) = await topics.status(admin, "Orders")
        assert (status.min_offset, status.max_offset) == (0, 2)

        await groups.create(admin, [broker], SubscriptionGroupConfig(group_name="Buyers"))
        assert await offsets.reset(admin, "Buyers", "Orders", 0, broker=broker, queue_id=0, offset=1) == {
            QUEUE: 1
        }
        (progress,) = await groups.progress(admin, "Buyers", "Orders")
        assert (progress.consumer_offset, progress.behind) == (1, 1)
        with pytest.raises(MQError, match="no offsets are known of group Nobody"):
            await groups.progress(admin, "Nobody")

        (state,) = await brokers.states(admin)
        assert (state.address, state.error, state.activated) == (broker, None, "true")
        assert (state.messages_in("today"), state.messages_in("yesterday")) == (2, 0)


async def test_a_group_that_pops_is_listed_once_by_its_name(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    async with Admin(await namesrv_of(run)) as admin:
        await topics.create(admin, [broker], "Orders", read_queues=1, write_queues=1)
        route = encode(await admin.route("Orders"))
        for topic in ("Orders", "Bills"):
            retries = pop_retry_topic("Buyers", topic, v2=True)
            await admin.ask(admin.namesrv[0], RegisterTopicInNamesrv(topic=retries), route)
        assert [each.group for each in await groups.all_progress(admin)] == ["Buyers"]


async def test_a_group_created_by_the_client_is_at_every_master(cluster: tuple[Run, str]) -> None:
    run, _ = cluster
    namesrv = await namesrv_of(run)
    async with ClientAdmin(namesrv) as client:
        await client.create_group(SubscriptionGroupConfig(group_name="Buyers", retry_max_times=3))
    async with Admin(namesrv) as admin:
        (config,) = (await groups.configs(admin, "Buyers")).values()
    assert (config.group_name, config.retry_max_times) == ("Buyers", 3)


async def test_a_broker_that_does_not_answer_has_an_error(
    cluster: tuple[Run, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = cluster
    async with Admin(await namesrv_of(run)) as admin:
        known = await admin.groups()
        known[0].broker_addrs[1] = "127.0.0.1:1"

        async def groups_with_a_dead_slave(cluster: str | None = None) -> object:
            return known

        monkeypatch.setattr(admin, "groups", groups_with_a_dead_slave)
        master, slave = await brokers.states(admin)
        assert master.error is None and master.version
        assert slave.error is not None and "127.0.0.1:1" in slave.error and not slave.figures
