"""The stories of RocketMQ's container tests on our containers; `tests/interop/test_container_stories.py` has
RocketMQ's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.integration.container.stories import STORIES, Story
from tests.integration.container.trio import OurTrio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def trio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OurTrio]:
    made = OurTrio(tmp_path_factory.mktemp("trio"))
    try:
        await made.up()
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_the_story(trio: OurTrio, story: Story) -> None:
    await story.prepare(trio)
    try:
        await story.run(trio)
    except BaseException:
        print(trio.logs())
        raise
