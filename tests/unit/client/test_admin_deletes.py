"""Admin.delete_topic: the route goes when all brokers have deleted the topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batonmq import Admin
from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.headers.namesrv import DeleteTopicInNamesrv

from .fakes import FakeBroker, FakeCluster


class Deleting(FakeBroker):
    def more(self) -> dict[int, Callable[[Request], object]]:
        self.deleted = 0
        return {RequestCode.DELETE_TOPIC_IN_BROKER: self._delete}

    def _delete(self, request: Request) -> Reply:
        self.deleted += 1
        return Reply()


async def test_a_topic_that_a_broker_set_keeps_has_its_route() -> None:
    async with FakeCluster() as cluster:
        first = await cluster.broker_of(Deleting, "a")
        await cluster.broker_of(Deleting, "b", 1)  # a slave: the master of b is away
        cluster.topic("t", a=1, b=1)
        forgotten: list[str] = []

        def forget(request: Request, header: DeleteTopicInNamesrv) -> Reply:
            forgotten.append(header.topic)
            return Reply()

        cluster.dispatcher.on(DeleteTopicInNamesrv, forget)
        async with Admin(cluster.namesrv) as admin:
            with pytest.raises(LookupError, match="t remains at b, of which no master lives"):
                await admin.delete_topic("t")
            assert (first.deleted, forgotten) == (1, [])
            second = await cluster.broker_of(Deleting, "b")
            await admin.delete_topic("t")
        assert (first.deleted, second.deleted, forgotten) == (2, 1, ["t"])
