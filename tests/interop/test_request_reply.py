"""RocketMQ's requesters, repliers and message traces on our broker."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batonmq.broker.service import BrokerService
from tests.interop.our_broker import our_broker

JAVA = Path(__file__).parent / "java"

pytestmark = pytest.mark.interop


@dataclass
class Cluster:
    namesrv: str
    broker: BrokerService


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with our_broker(tmp_path, trace_topic_enable=True) as (address, broker):
        yield Cluster(address, broker)


async def test_quick_rocketmqs_requests_are_answered_through_our_broker(peer, cluster: Cluster) -> None:
    output = await peer.java(JAVA / "RequestReply.java", cluster.namesrv, "Interop", "20")
    assert "answered=20 " in output, output[-3000:]
    assert "silence=timeout" in output and "async=re: async" in output and "failed=0" in output, output[
        -3000:
    ]
    assert output.count("reply_topic=DefaultCluster_REPLY_TOPIC SEND_OK") == 21, output[-3000:]
    bounds = cluster.broker.broker.store.queue_bounds("DefaultCluster_REPLY_TOPIC", 0)
    assert bounds.max_offset == 21


@pytest.mark.timeout(300)
async def test_rocketmqs_traces_are_stored_and_found_by_its_mqadmin(peer, cluster: Cluster) -> None:
    output = await peer.java(JAVA / "Trace.java", cluster.namesrv, "Interop", timeout_s=200)
    assert "consumed=true" in output, output[-3000:]
    found = re.search(r"msgId=(\w+)", output)
    assert found
    store = cluster.broker.broker.store
    async with asyncio.timeout(15):  # messages are indexed a second later, or more on a busy machine
        while len(store.query_by_key("RMQ_SYS_TRACE_TOPIC", found[1], 10).records) < 2:
            await asyncio.sleep(0.1)
    traced = await peer.admin_until(
        "trace_group", "queryMsgTraceById", "-n", cluster.namesrv, "-i", found[1], timeout_s=200
    )
    assert "trace_producer" in traced and "trace_group" in traced, traced
