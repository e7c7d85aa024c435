"""Several brokers in one process and on one event loop: nothing of one shows in the other."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.integration.broker.rig import v2
from tests.scrape import scrape

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.common import log as logs
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.ha.config import HAConfig
from batonmq.net import RemotingClient
from batonmq.protocol.errors import MQError
from batonmq.store.config import StoreConfig


class Lines(logging.Handler):
    """Log lines as `common.log` formats them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.OneLine("%(server)s%(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def broker(root: Path, name: str, log_identity: str, **shared: Any) -> BrokerService:
    config = BrokerConfig(
        broker_name=name,
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        metrics_exporter_type=MetricsExporterType.PROM,
        metrics_prom_exporter_port=0,
    )
    store = StoreConfig(store_path_root_dir=str(root / name), mapped_file_size_commit_log=1 << 20)
    return BrokerService(config, store, HAConfig(), log_identity=log_identity, **shared)


Pair = tuple[BrokerService, BrokerService]


@asynccontextmanager
async def two_brokers(root: Path) -> AsyncIterator[Pair]:
    pair = broker(root, "east", "east-0"), broker(root, "west", "west-0")
    for each in pair:
        await each.start()
    try:
        yield pair
    finally:
        for each in pair:
            if not each.broker.role.stopping:
                await each.stop()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Programs run on uvloop, the simulation on asyncio's own loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def test_each_has_its_own_ports_store_metrics_and_log_lines(
    runner: asyncio.Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="batonmq")
    runner.run(each_has_its_own_ports_store_metrics_and_log_lines(tmp_path))


async def each_has_its_own_ports_store_metrics_and_log_lines(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as pair:
        east, west = pair
        client, lines = RemotingClient(), Lines()
        logging.getLogger("batonmq").addHandler(lines)
        try:
            for _ in range(3):
                await client.call(f"127.0.0.1:{east.port}", v2("OfEast"), b"x")
            await client.call(f"127.0.0.1:{west.port}", v2("OfWest"), b"x")
            assert east.port != west.port
            assert east.broker.store.max_offset > west.broker.store.max_offset > 0
            assert "OfEast" not in west.broker.tables.topics and "OfWest" not in east.broker.tables.topics
            await asyncio.sleep(0.05)
            for name, other in (("east", "west"), ("west", "east")):
                files = {path.name for path in (tmp_path / name / "config").iterdir()}
                assert "topics.json" in files, other
            made = [line for line in lines.lines if "created" in line]
            assert any(line.startswith("[east-0] topic created") and "OfEast" in line for line in made), made
            assert any(line.startswith("[west-0] topic created") and "OfWest" in line for line in made), made
            assert east.metrics is not None and west.metrics is not None
            for service, topic, count in ((east, "OfEast", 3), (west, "OfWest", 1)):
                assert service.metrics is not None
                shown = await asyncio.to_thread(scrape, service.metrics.port)
                received = {
                    sample: value
                    for sample, value in shown.items()
                    if sample.startswith("rocketmq_messages_in_total") and "topic=Of" in sample
                }
                assert list(received.values()) == [count] and topic in next(iter(received))
        finally:
            logging.getLogger("batonmq").removeHandler(lines)
            await client.close()


def test_they_may_share_a_client_and_threads(runner: asyncio.Runner, tmp_path: Path) -> None:
    runner.run(they_share(tmp_path))


async def they_share(tmp_path: Path) -> None:
    client, threads = RemotingClient(), ThreadPoolExecutor(1)
    east = broker(tmp_path, "east", "east-0", client=client, readers=threads)
    west = broker(tmp_path, "west", "west-0", client=client, readers=threads)
    await east.start()
    await west.start()
    try:
        assert east.broker.client is west.broker.client is client
        assert east.broker.readers is west.broker.readers is threads
        await east.stop()
        await client.call(f"127.0.0.1:{west.port}", v2("T"), b"x")
        assert threads.submit(int, "1").result() == 1
    finally:
        await west.stop()
        await client.close()
        threads.shutdown()


def test_one_that_fails_does_not_end_the_other(runner: asyncio.Runner, tmp_path: Path) -> None:
    runner.run(one_that_fails_does_not_end_the_other(tmp_path))


async def one_that_fails_does_not_end_the_other(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as pair:
        east, west = pair
        client = RemotingClient()
        try:
            east.broker.fail(OSError(5, "Input/output error"))
            assert east.failed.done() and not west.failed.done()
            await east.stop()
            shutil.rmtree(tmp_path / "east")
            await client.call(f"127.0.0.1:{west.port}", v2("T"), b"x")
            again = broker(tmp_path, "east", "east-0")
            await again.start()
            await client.call(f"127.0.0.1:{again.port}", v2("T"), b"x")
            await again.stop()
            await client.call(f"127.0.0.1:{west.port}", v2("T"), b"x")
        finally:
            await client.close()


def test_one_whose_store_is_taken_does_not_start_and_leaves_the_other_alone(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    runner.run(one_whose_store_is_taken_does_not_start_and_leaves_the_other_alone(tmp_path))


async def one_whose_store_is_taken_does_not_start_and_leaves_the_other_alone(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as pair:
        _, west = pair
        client = RemotingClient()
        try:
            with pytest.raises(Exception, match="is open in this process already"):
                await broker(tmp_path, "west", "second").start()
            await client.call(f"127.0.0.1:{west.port}", v2("T"), b"x")
        except MQError as error:
            pytest.fail(str(error))
        finally:
            await client.close()
