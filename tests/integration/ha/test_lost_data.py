"""A replica whose disk lost what was on it must not be elected because the others are away."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path

import pytest
from tests.integration.ha.replica_group import ReplicaGroup, commit_log

from batonmq.demo.cluster import Program
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.protocol.headers.controller import CleanBrokerData
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.verify import verify


def lose(store: Path) -> int:
    """Overwrite the last quarter of a stopped replica's log with zeros; how much of it had been on disk."""
    end = verify(store).end_offset
    (path,) = (store / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(3 * end // 4)
        file.write(bytes(end - 3 * end // 4))
    return Checkpoint.load(store / "checkpoint").safe_offset - verify(store).end_offset


async def restart(group: ReplicaGroup, program: Program) -> None:
    await asyncio.to_thread(program.start, wait=False)
    group.pids[program.name] = program.pid


async def nobody_is_elected(group: ReplicaGroup) -> None:
    """No replica with the data is up: the controllers know no master soon, and none 2 s later."""
    async with asyncio.timeout(30):
        while (info := await group.info()) is None or info.master_address:
            await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    info = await group.info()
    assert info is not None and not info.master_address


async def test_it_comes_back_as_a_new_replica_that_has_to_catch_up(group: ReplicaGroup) -> None:
    await group.send(200, 1000)
    await asyncio.sleep(1.5)  # the checkpoint is written every second
    damaged, well = group.cluster.brokers
    store = group.cluster.store_path(0)
    ids = await group.ids()
    # Both at once; otherwise the master would have the controllers drop the slave.
    for program in (damaged, well):
        program.signal(signal.SIGSTOP)
    for program in (well, damaged):
        program.kill()
    lost = lose(store)
    assert lost > 0
    await restart(group, damaged)
    await group.logs_it(damaged, "ERROR", "had been on disk up to", f": {lost} bytes are lost")
    line = await group.logs_it(damaged, "ERROR", f"gives up broker id {ids[damaged.address]}")
    assert "brokerIdentity-former" in line and (store / "brokerIdentity-former").exists()
    await nobody_is_elected(group)
    await restart(group, well)
    info = await group.in_sync(2)
    assert info.master_address == well.address
    assert sorted(each.broker_id for each in info.in_sync_replicas) == [ids[well.address], 3]
    await group.check()
    clean = CleanBrokerData(group.cluster.broker_name, group.cluster.cluster_name, str(ids[damaged.address]))
    await group.client.call(group.cluster.controller_addresses[0], clean)
    await group.elect(damaged)
    await group.check()
    assert commit_log(store) == commit_log(group.cluster.store_path(1))


@pytest.mark.parametrize("left", [None, b""], ids=["missing", "empty"])
async def test_one_without_epochs_is_not_elected_while_the_other_is_away(
    group: ReplicaGroup, left: bytes | None
) -> None:
    """Its log is cut to nothing as soon as it follows: then it must not be reported to have everything."""
    await group.send(200, 1000)
    master = await group.master()
    (slave,) = (each for each in group.cluster.brokers if each is not master)
    ids = await group.ids()
    # The master hangs, so it cannot have the controllers drop the slave.
    master.signal(signal.SIGSTOP)
    slave.kill()
    epochs = group.cluster.store_path(group.cluster.brokers.index(slave)) / "epochFileCheckpoint"
    epochs.unlink()
    if left is not None:
        epochs.write_bytes(left)
    await restart(group, slave)
    line = await group.logs_it(slave, "ERROR", f"gives up broker id {ids[slave.address]}")
    assert str(epochs) in line
    master.kill()
    await nobody_is_elected(group)
    await restart(group, master)
    info = await group.in_sync(2)
    assert info.master_address == master.address
    await group.check()


async def test_the_only_one_in_sync_continues_without_its_epochs(group: ReplicaGroup) -> None:
    await group.send(200, 1000)
    master = await group.master()
    (slave,) = (each for each in group.cluster.brokers if each is not master)
    slave.kill()
    await group.in_sync(1)
    master.kill()
    (group.cluster.store_path(group.cluster.brokers.index(master)) / "epochFileCheckpoint").unlink()
    for program in (slave, master):
        await restart(group, program)
    info = await group.in_sync(2)
    assert info.master_address == master.address
    assert not group.lines(master, "gives up")
    await group.check()


async def test_one_that_is_not_in_sync_keeps_its_id(group: ReplicaGroup) -> None:
    await group.send(200, 1000)
    await asyncio.sleep(1.5)
    master = await group.master()
    (slave,) = (each for each in group.cluster.brokers if each is not master)
    ids = await group.ids()
    slave.kill()
    assert lose(group.cluster.store_path(group.cluster.brokers.index(slave))) > 0
    await group.in_sync(1)
    await restart(group, slave)
    await group.logs_it(slave, "ERROR", "bytes are lost")
    await group.in_sync(2)
    assert await group.ids() == ids
    assert not group.lines(slave, "gives up")
    await group.check()


async def test_a_slave_that_knows_a_later_epoch_refuses_the_master_and_says_it_once(
    group: ReplicaGroup,
) -> None:
    """An operator must decide which of the two is right; the master continues without this replica."""
    await group.send(200, 1000)
    master = await group.master()
    (slave,) = (each for each in group.cluster.brokers if each is not master)
    slave.kill()
    await group.in_sync(1)
    store = group.cluster.store_path(group.cluster.brokers.index(slave))
    EpochFile.load(store / "epochFileCheckpoint").append(99, verify(store).end_offset)
    slave.settings = {**slave.settings, "syncBrokerMetadataPeriod": 50}
    await restart(group, slave)
    line = await group.logs_it(slave, "WARNING", f"{master.address} is master", "this log has seen 99")
    assert "electMaster" in line and "empty store" in line
    await asyncio.sleep(1)
    assert len(group.lines(slave, "this log has seen 99")) == 1
    await group.send(200, 1000)
    await group.in_sync(1)
    await group.check()


async def test_a_single_replica_continues_with_what_there_is(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path / "group", replicas=1)
    await group.up()
    try:
        await group.send(200, 1000)
        await asyncio.sleep(1.5)
        (broker,) = group.cluster.brokers
        broker.kill()
        assert lose(group.cluster.store_path(0)) > 0
        await restart(group, broker)
        await group.logs_it(broker, "ERROR", "bytes are lost")
        await group.in_sync(1)
        await group.serving()
        assert not group.lines(broker, "gives up")
    finally:
        await group.close()


async def test_a_broker_set_returns_to_controllers_that_lost_their_state(group: ReplicaGroup) -> None:
    """As in docs/operations.md (Backups). The log must not advise to empty the only store with messages."""
    await group.send(200, 1000)
    old_master = await group.master()
    (other,) = [program for program in group.cluster.brokers if program is not old_master]
    (controller,) = [program for program in group.cluster.programs if program.verb == "controller"]
    for program in (other, old_master, controller):
        program.kill()
    shutil.rmtree(str(controller.settings["controllerStorePath"]))
    await restart(group, controller)
    await restart(group, old_master)
    line = await group.logs_it(old_master, "WARNING", "do not know its id")
    assert "keep the store" in line and "brokerIdentity" in line
    for program in (old_master, other):
        program.kill()
        (Path(str(program.settings["storePathRootDir"])) / "brokerIdentity").unlink()
        await restart(group, program)
        info = await group.in_sync(1 if program is old_master else 2)
        assert info.master_address == old_master.address
    await group.check()
