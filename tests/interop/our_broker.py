"""One of our brokers with its name server in the test's process, for RocketMQ's clients and tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.store.config import StoreConfig
from tests.interop.conftest import free_port


@asynccontextmanager
async def our_broker(root: Path, **keys: Any) -> AsyncIterator[tuple[str, BrokerService]]:
    """The name server's address, and the running broker ``ours`` with its store below `root`.

    `keys`: of its `BrokerConfig`.
    """
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json"))
    )
    await namesrv.start()
    address = f"127.0.0.1:{namesrv.port}"
    broker = BrokerService(
        BrokerConfig(
            broker_name="ours",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=free_port(),
            namesrv_addr=address,
            **keys,
        ),
        StoreConfig(store_path_root_dir=str(root / "store"), max_index_num=100_000, max_hash_slot_num=20_000),
        HAConfig(),
    )
    await broker.start()
    try:
        yield address, broker
    finally:
        await broker.stop()
        await namesrv.stop()
