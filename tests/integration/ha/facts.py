"""The true state of a broker set, from its files and from sends, to compare with admin views."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from tests.integration.ha.replica_group import ReplicaGroup, ha_address

from batonmq.broker.replica.identity import decode as identity_of
from batonmq.demo.cluster import Program
from batonmq.ha.autoswitch import epoch_file
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.store.verify import verify

SETTLED_S = 15.0

Epochs = list[tuple[int, int, int]]
"""(epoch, first offset, offset behind the last), oldest first."""


@dataclass(frozen=True)
class MasterLinks:
    """haStatus of a master."""

    end: int
    in_sync: int
    slaves: list[tuple[int, int, bool]]
    """(acknowledged offset, bytes behind, in sync)."""


@dataclass(frozen=True)
class SlaveLink:
    """haStatus of a slave."""

    master_ha_address: str
    end: int


@dataclass(frozen=True)
class Members:
    """getSyncStateSet of the group; replicas as id -> (address, alive)."""

    master_id: int
    master_address: str
    master_epoch: int
    in_sync: dict[int, tuple[str, bool]]
    not_in_sync: dict[int, tuple[str, bool]]


class Views(Protocol):
    """What an admin tool shows."""

    async def epochs(self) -> dict[str, Epochs]:
        """Of each broker of the group that is registered, by address."""

    async def ha_status(self, address: str) -> MasterLinks | SlaveLink: ...

    async def members(self) -> Members: ...


async def check_views(group: ReplicaGroup, views: Views, *, down: Collection[Program] = ()) -> int:
    """Hold what `views` shows against what is so, with no load and these replicas down; the master epoch."""
    running = [program for program in group.cluster.brokers if program not in down]
    await group.in_sync(len(running))
    master = await _taking_sends(group, running)
    end = await _settled(group, running)
    stores = {
        program.address: group.cluster.store_path(number)
        for number, program in enumerate(group.cluster.brokers)
    }
    ids = {
        address: identity_of((store / "brokerIdentity").read_text(), claiming=False).broker_id
        for address, store in stores.items()
    }

    written: dict[str, Epochs] = {}
    for program in running:
        entries = epoch_file.decode((stores[program.address] / "epochFileCheckpoint").read_bytes())
        ends = [*(start for _, start in entries[1:]), end]
        written[program.address] = [
            (epoch, start, until) for (epoch, start), until in zip(entries, ends, strict=True)
        ]
    assert await views.epochs() == written

    slaves = len(running) - 1
    assert await views.ha_status(master.address) == MasterLinks(end, slaves, [(end, 0, True)] * slaves)
    for program in running:
        if program is not master:
            assert await views.ha_status(program.address) == SlaveLink(ha_address(master), end)

    epoch = written[master.address][-1][0]
    assert await views.members() == Members(
        ids[master.address],
        master.address,
        epoch,
        {ids[program.address]: (program.address, True) for program in running},
        {ids[program.address]: (program.address, False) for program in down},
    )
    return epoch


async def _settled(group: ReplicaGroup, running: list[Program]) -> int:
    """Until all logs end at the same offset, which is returned."""
    deadline = time.monotonic() + SETTLED_S
    numbers = [group.cluster.brokers.index(program) for program in running]
    while True:
        ends = {verify(group.cluster.store_path(number)).end_offset for number in numbers}
        await asyncio.sleep(0.3)  # what was in the log when it was read is acknowledged and shown by then
        if len(ends) == 1:
            return ends.pop()
        assert time.monotonic() < deadline, ends


async def _taking_sends(group: ReplicaGroup, running: Collection[Program]) -> Program:
    """The one that takes messages; it was elected before it knew of it."""
    async with asyncio.timeout(10):
        while not (masters := [program for program in running if await _takes_sends(group, program)]):
            await asyncio.sleep(0.05)
    (master,) = masters
    return master


async def _takes_sends(group: ReplicaGroup, program: Program) -> bool:
    header = SendMessageV2(
        producer_group="p",
        topic="Facts",
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )
    try:
        await group.client.call(program.address, header, b"x")
    except MQError as error:
        assert error.code == ResponseCode.SYSTEM_BUSY, error
        return False
    return True


async def check_through_switches(group: ReplicaGroup, views: Views) -> None:
    """With two replicas: at first, after a planned switch, after the master's death, after its return."""
    first = await group.master()
    (second,) = (broker for broker in group.cluster.brokers if broker is not first)
    began = await check_views(group, views)
    await group.elect(second)
    assert await check_views(group, views) == began + 1
    second.kill()
    assert await check_views(group, views, down=[second]) == began + 2
    await asyncio.to_thread(second.start)
    assert await check_views(group, views) >= began + 2
