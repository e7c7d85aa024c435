"""RocketMQ's own producer, push consumer and mqadmin against our name server and our broker."""

import re
from pathlib import Path

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.store.config import StoreConfig

JAVA = Path(__file__).parent / "java"

pytestmark = pytest.mark.interop


async def test_quick_sends_batches_delays_retries_and_tags(peer, tmp_path: Path) -> None:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    broker = BrokerService(
        BrokerConfig(
            broker_name="ours",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=peer.free_port(),
            namesrv_addr=f"127.0.0.1:{namesrv.port}",
        ),
        StoreConfig(
            store_path_root_dir=str(tmp_path / "store"), max_index_num=100_000, max_hash_slot_num=20_000
        ),
        HAConfig(),
    )
    await broker.start()
    try:
        address = f"127.0.0.1:{namesrv.port}"
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
    finally:
        await broker.stop()
        await namesrv.stop()
