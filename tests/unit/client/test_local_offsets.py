"""The file of offsets of a broadcasting consumer: one owner, and no start with a file that says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.client.consumer import Consumer
from batonmq.protocol.bodies.clients import MessageModel

from .fakes import FakeCluster
from .helpers import FIRST, fill, until


def broadcasting(cluster: FakeCluster, folder: Path, seen: list[bytes]) -> Consumer:
    consumer = Consumer(
        "g", cluster.namesrv, from_where=FIRST, model=MessageModel.BROADCASTING, offsets_dir=str(folder)
    )
    consumer.subscribe("t", "*", lambda message: seen.append(message.body))
    return consumer


async def test_two_consumers_do_not_share_a_file_of_offsets(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 2)
        seen: list[bytes] = []
        async with broadcasting(cluster, tmp_path, seen):
            second = broadcasting(cluster, tmp_path, seen)
            with pytest.raises(OSError, match=r"g\.json is in use .* its own offsets_dir"):
                await second.start()
            async with broadcasting(cluster, tmp_path / "other", seen):
                await until(lambda: len(seen) == 4)
        async with broadcasting(cluster, tmp_path, seen) as again:
            assert len(again.assigned) == 1


@pytest.mark.parametrize("content", [b"", b"{broken"])
async def test_a_damaged_file_of_offsets_is_an_error_at_the_start(tmp_path: Path, content: bytes) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        (tmp_path / "g.json").write_bytes(content)
        with pytest.raises(OSError, match=r"g\.json.*remove the file"):
            await broadcasting(cluster, tmp_path, []).start()
        (tmp_path / "g.json").unlink()
        async with broadcasting(cluster, tmp_path, []) as consumer:
            assert len(consumer.assigned) == 1
