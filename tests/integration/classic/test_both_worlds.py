"""A broker set moves from roles in files to controllers and back, with sends going on.

docs/operations.md has the steps.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.classic.group import NAME, TOPIC, ClassicGroup, commit_log, until

from batonmq import Message, MessageQueue, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import Program
from batonmq.demo.group import Group, GroupState
from batonmq.demo.ports import free_ports
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

pytestmark = pytest.mark.timeout(180)
RULE = {
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 1,
    "enableAutoInSyncReplicas": "true",
    "enableSlaveActingMaster": "true",
    "autoCreateTopicEnable": "true",
}
FILE_ONLY = ("brokerId", "brokerRole")
PATIENCE_S = 30.0
SENDERS = 3


class BothWorlds(ClassicGroup):
    """`ClassicGroup` with a controller that brokers do not use at first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.controller = Program(
            "controller",
            "controller",
            self.directory,
            {
                "controllerDLegerGroup": "controllers",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": self.directory / "controller",
            },
        )
        (self.controller.port,) = free_ports(1)
        peers = f"n0-{self.controller.address}"
        self.controller.settings = {**self.controller.settings, "controllerDLegerPeers": peers}
        self.namesrv.settings = {**self.namesrv.settings, "supportActingMaster": "true"}
        self.states = Group([self.controller.address], NAME)
        self._sending = True
        self._senders: list[asyncio.Task[None]] = []
        self.failed = 0
        self._last_ack = time.monotonic()
        self.longest_pause_s = 0.0
        """Between two acknowledgements."""

    @property
    def slave(self) -> Program:
        return self.brokers[1]

    async def close(self) -> None:
        await self.stop_sending()
        await self.states.close()
        await super().close()
        await asyncio.to_thread(self.controller.stop)

    # -- sends that go on

    def send_on(self) -> None:
        self._last_ack = time.monotonic()
        self._senders = [asyncio.create_task(self._send_on(number)) for number in range(SENDERS)]

    async def stop_sending(self) -> None:
        self._sending = False
        senders, self._senders = self._senders, []
        await asyncio.gather(*senders)

    async def _send_on(self, number: int) -> None:
        count = 0
        queue = MessageQueue(TOPIC, NAME, 0)
        async with Producer(f"p{number}", self.namesrv.address, send_timeout_ms=3_000) as producer:
            while self._sending:
                count += 1
                body = b"%d-%d " % (number, count) + os.urandom(100)
                try:
                    await producer.send(Message(TOPIC, body), queue=queue)
                except (NetError, MQError, ClientError):
                    self.failed += 1
                    await asyncio.sleep(0.05)
                else:
                    self.acked.append(body)
                    now = time.monotonic()
                    self.longest_pause_s = max(self.longest_pause_s, now - self._last_ack)
                    self._last_ack = now
                await asyncio.sleep(0.01)

    def say_pause(self, step: str) -> None:
        print(f"{step}: sends paused for {self.longest_pause_s:.1f} s at most")
        self.longest_pause_s = 0.0

    async def takes_sends(self) -> None:
        """Until some more sends are acknowledged."""
        before = len(self.acked)
        await until(lambda: len(self.acked) > before + 20, "sends are acknowledged", PATIENCE_S)

    # -- the steps

    async def _restart(self, program: Program, settings: dict[str, object]) -> None:
        assert await asyncio.to_thread(program.stop) == 0
        program.settings = settings
        await asyncio.to_thread(program.start)

    def _with_controller(self, program: Program) -> dict[str, object]:
        kept = {key: value for key, value in program.settings.items() if key not in FILE_ONLY}
        return {
            **kept,
            "enableControllerMode": "true",
            "controllerAddr": self.controller.address,
            "allAckInSyncStateSet": "true",
        }

    def _with_role(self, program: Program, broker_id: int) -> dict[str, object]:
        dropped = ("enableControllerMode", "controllerAddr", "allAckInSyncStateSet")
        kept = {key: value for key, value in program.settings.items() if key not in dropped}
        role = "SLAVE" if broker_id else "SYNC_MASTER"
        return {**kept, "brokerId": broker_id, "brokerRole": role}

    async def to_controllers(self) -> None:
        """The master first: only it has the last messages for certain."""
        master, slave = self.brokers
        await self._restart(master, self._with_controller(master))
        await self.state_with(master, 1)
        await self._restart(slave, self._with_controller(slave))
        await self.state_with(master, 2)

    async def to_files(self) -> None:
        """The slave first: as long as it waits, no second master can be elected."""
        state = await self.state_with(None, 2)
        self.brokers.sort(key=lambda program: program.address != state.master_address)
        master, slave = self.brokers
        await self._restart(slave, self._with_role(slave, 1))
        await self._restart(master, self._with_role(master, 0))
        await self.in_sync_while_sending()

    async def state_with(self, master: Program | None, members: int) -> GroupState:
        """Until the SyncStateSet has so many members, under this master if one is given."""
        return await self.states.wait_for(
            lambda state: (
                state.master_address is not None
                and (master is None or state.master_address == master.address)
                and len(state.sync_state_set) == members
            ),
            PATIENCE_S,
            f"{members} in sync",
        )

    async def in_sync_while_sending(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            info = await self.status(self.master)
            if info is not None and any(each.in_sync for each in info.ha_connection_info):
                return
            assert time.monotonic() < deadline, self.master.log_path.read_text()[-3000:]
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Both replicas have every message that was acknowledged."""
        for program in self.brokers:
            found = await self.bodies(program.address)
            assert set(self.acked) <= set(found), f"{program.name} lacks {len(set(self.acked) - set(found))}"


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BothWorlds]:
    made = BothWorlds(tmp_path, settings=dict(RULE))
    try:
        await made.up()
        await made.serving()
        await asyncio.to_thread(made.controller.start)
        yield made
    finally:
        await made.close()


async def test_a_broker_set_moves_to_controllers_and_back_twice_with_sends_going_on(
    group: BothWorlds,
) -> None:
    group.send_on()
    await group.takes_sends()
    for trip in range(2):
        await group.to_controllers()
        await group.takes_sends()
        group.say_pause("to controllers")
        # Controllers do what controllers are for.
        state = await group.state_with(None, 2)
        (lost,) = (each for each in group.brokers if each.address == state.master_address)
        lost.kill()
        await group.takes_sends()
        await asyncio.to_thread(lost.start)
        await group.state_with(None, 2)
        group.say_pause("another master")
        await group.to_files()
        await group.takes_sends()
        group.say_pause("back")
        assert group.master is not lost, f"trip {trip}: the other broker is the master in the files now"
    await group.stop_sending()
    await group.in_sync(1)
    await group.check()
    ends = [commit_log(Path(str(program.settings["storePathRootDir"]))) for program in group.brokers]
    assert ends[0] == ends[1]
    assert len(group.acked) > 100
