"""RocketMQ's push consumer in pop mode and mqadmin's setConsumeMode against our broker."""

import re
from pathlib import Path

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.pop.part import PopPart
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.store.config import StoreConfig

JAVA = Path(__file__).parent / "java"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def numbers(output: str) -> dict[str, int]:
    """``name=1 other=2`` of the last line that has such."""
    lines = [line for line in output.splitlines() if "consumed=" in line]
    assert lines, output[-3000:]
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", lines[-1])}


@pytest.mark.parametrize("headers", ["JSON", "ROCKETMQ"])
async def test_quick_java_push_consumers_pop_from_our_broker(peer, headers: str, tmp_path: Path) -> None:
    """With binary headers, too; RocketMQ's brokers refuse those."""
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
        where = ("-n", address, "-c", "DefaultCluster")
        await peer.admin_until("ours", "clusterList", "-n", address)
        # mqadmin gives up after 5 s, which a busy machine needs to start it.
        await peer.admin_until("success", "updateTopic", *where, "-t", "Popped", "-r", "4", "-w", "4")
        await peer.admin_until("success", "updateSubGroup", *where, "-g", "pop_group")
        await peer.admin_until(
            "success", "setConsumeMode", *where, "-t", "Popped", "-g", "pop_group", "-m", "POP"
        )
        output = await peer.java(JAVA / "PopPush.java", address, "Popped", "pop_group", "500", headers)
        seen = numbers(output)
        assert seen["consumed"] == 500, output[-2000:]
        assert seen["receipts"] >= 550
        assert seen["retried"] == 50
        assert seen["more_than_needed"] == 0
        assert seen["first"] > 0 and seen["second"] > 0
        assert len(broker.part(PopPart).check_points) == 0
    finally:
        await broker.stop()
        await namesrv.stop()
