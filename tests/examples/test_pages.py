"""The Python programs on the pages for users run, as printed, against a real cluster of processes."""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batonmq import Admin, Message, Producer
from batonmq.demo.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"(?:10\.0\.0\.\d:9876;?)+|127\.0\.0\.1:9876")
SETTINGS = {
    "mappedFileSizeCommitLog": 16 << 20,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 5_000,
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "traceTopicEnable": "true",
}
PAGES = ("README.md", "docs/client.md", "docs/light-queues.md")
NEED_MORE = (
    "batonmq.spark",
    "ca.pem",
    "await consumer.reply",
    "reader.dead_letters",
    "batonmq.client.opentelemetry",
)
"""Spark has tests of its own; certificates, and objects that another block of the page makes."""
RUN_S = 30.0
SERVE_S = 4.0
"""So long runs a program that has no end."""


def programs() -> Iterator[tuple[str, str]]:
    """``page:line`` and text of every block of Python that stands for itself."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
            if not any(words in block[1] for words in NEED_MORE):
                yield f"{page}:{text.count(chr(10), 0, block.start()) + 2}", block[1]


class Anything:
    """The reader's own code: every method is a coroutine that agrees."""

    def __getattr__(self, name: str) -> Any:
        return self

    async def __call__(self, *arguments: object) -> bool:
        return True


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {**SETTINGS, "allAckInSyncStateSet": "false"}
    with LocalCluster(tmp_path_factory.mktemp("pages"), broker_settings=settings) as cluster:
        yield cluster.namesrv_address


async def send_one(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer("pages", namesrv) as producer:
        for topic in ("orders", "Parent"):
            await admin.create_topic(topic, queues=8)
        await producer.send(Message("orders", b"1", tags="paid", keys="1"))


@pytest.mark.parametrize(
    ("place", "text"), [pytest.param(place, text, id=place) for place, text in programs()]
)
def test_a_program_of_a_page_runs(
    place: str, text: str, namesrv: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asyncio.run(send_one(namesrv))
    names = {"__name__": "__main__", "store": Anything(), "ready_for": Anything()}
    names |= {"asyncio": asyncio, "database": Anything(), "handle": Anything()}
    # A program that waits for Enter consumes meanwhile.
    monkeypatch.setattr(builtins, "input", lambda prompt="": time.sleep(1))
    monkeypatch.chdir(tmp_path)
    code = compile(ADDRESS.sub(namesrv, text), place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    endless = "asyncio.Event().wait()" in text

    async def run() -> None:
        with contextlib.suppress(TimeoutError) if endless else contextlib.nullcontext():
            async with asyncio.timeout(SERVE_S if endless else RUN_S):
                await eval(code, names)

    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(run())
    else:
        exec(code, names)
