"""The stories of RocketMQ's container tests on RocketMQ's containers: what ours do in
`tests/integration/container/test_stories.py`, they do, too, or `WORSE` says what they do instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.container.stories import STORIES, Story
from tests.integration.container.trio import Trio
from tests.interop.conftest import Peer, free_port

pytestmark = [pytest.mark.interop, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

HEAP = "700m"
"""Of each container, with three brokers."""
WORSE: dict[str, str] = {}
"""Story -> how RocketMQ's containers end it."""


class JavaTrio(Trio):
    """Three of RocketMQ's containers in our name server."""

    patience_s = 60.0

    def __init__(self, directory: Path, peer: Peer) -> None:
        super().__init__(directory)
        self._peer = peer

    async def start_container(self, number: int, paths: str) -> str:
        config = {"listenPort": free_port(), "namesrvAddr": self.namesrv_address, "brokerConfigPaths": paths}
        process = await self._peer.start("container", config)
        for path in paths.split(":"):
            await process.wait_for(f"Broker [{Path(path).stem}] boot success")
        return process.address

    async def stop_containers(self) -> None:
        await asyncio.to_thread(self._peer.stop_all)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def trio(rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[JavaTrio]:
    directory = tmp_path_factory.mktemp("trio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEER_HEAP", HEAP)
        made = JavaTrio(directory, Peer(directory))
        try:
            await made.up()
            # A Java slave copies topics once a minute: all at once.
            await asyncio.gather(*(story.prepare(made) for story in STORIES))
            yield made
        finally:
            await made.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_the_story_on_rocketmqs_containers(trio: JavaTrio, story: Story) -> None:
    await story.run(trio)
