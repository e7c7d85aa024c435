"""The stories of RocketMQ's container tests on RocketMQ's containers.

Ours run them in `tests/integration/container/test_stories.py`. `WORSE` has those that RocketMQ 5.5.0 fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio

from tests.integration.container.stories import STORIES, Story
from tests.integration.container.trio import Trio
from tests.interop.conftest import Peer, free_port

pytestmark = [pytest.mark.interop, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

HEAP = "700m"
"""Of each container, with three brokers."""
HEALS_S = 30.0
NO_OFFSETS = "a broker of 5.5.0 cannot read the consumer offsets that another one writes (issue 10284)"
WORSE = {
    "slaves_copy_the_offsets_of_groups": NO_OFFSETS,
    "a_master_that_returns_takes_the_offsets_of_groups": NO_OFFSETS,
    "a_master_that_returns_takes_the_progress_of_delay_levels": "without pre-online it delivers them again",
}
"""Story -> why RocketMQ fails."""


class JavaTrio(Trio):
    """Three of RocketMQ's containers and our name server."""

    patience_s = 60.0
    delay_level, delay_s = 4, 30.0
    # A master that reads its slaves' offsets first (see `NO_OFFSETS`) never comes back.
    also: ClassVar[dict[str, object]] = {"skipPreOnline": "true"}

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


@dataclass
class Stage:
    """A trio for one story after the other; a new one after a story that left it broken."""

    root: Path
    trio: JavaTrio | None = None
    built: int = 0

    async def whole(self) -> JavaTrio:
        if self.trio is not None:
            if await self.trio.heals(HEALS_S):
                return self.trio
            await self.close()
        self.built += 1
        directory = self.root / f"trio-{self.built}"
        directory.mkdir()
        self.trio = JavaTrio(directory, Peer(directory))
        await self.trio.up()
        # A Java slave copies topics once a minute: all at once.
        await asyncio.gather(*(story.prepare(self.trio) for story in STORIES))
        return self.trio

    async def close(self) -> None:
        if self.trio is not None:
            await self.trio.close()
            self.trio = None


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEER_HEAP", HEAP)
        made = Stage(tmp_path_factory.mktemp("stage"))
        try:
            yield made
        finally:
            await made.close()


WORSE_LAST = sorted(STORIES, key=lambda story: story.name in WORSE)


def parameter(story: Story) -> object:
    marks = [pytest.mark.xfail(strict=True, reason=WORSE[story.name])] if story.name in WORSE else []
    return pytest.param(story, id=story.name, marks=marks)


@pytest.mark.parametrize("story", [parameter(each) for each in WORSE_LAST])
async def test_the_story_on_rocketmqs_containers(stage: Stage, story: Story) -> None:
    await story.run(await stage.whole())
