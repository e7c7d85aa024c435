"""RocketMQ's own producer, push consumer and mqadmin against our name server and our broker."""

import re
from pathlib import Path

import pytest

from tests.interop.our_broker import our_broker

JAVA = Path(__file__).parent / "java"

pytestmark = pytest.mark.interop


async def test_quick_sends_batches_delays_retries_and_tags(peer, tmp_path: Path) -> None:
    async with our_broker(tmp_path) as (address, _):
        output = await peer.java(JAVA / "SendAndConsume.java", address, "Interop", "200")
        assert "complete=true missing=[]" in output, output[-3000:]
        assert "batch_ids=10" in output
        assert "retried=1" in output
        assert "foreign=0" in output
        delay = re.search(r"delay_ms=(\d+)", output)
        assert delay is not None and int(delay[1]) >= 1000
        clusters = await peer.admin_until("ours", "clusterList", "-n", address)
        assert "127.0.0.1" in clusters
        progress = await peer.admin("consumerProgress", "-n", address, "-g", "interop_group")
        assert "%RETRY%interop_group" in progress and "Interop" in progress, progress
