"""The master role goes back to the preferred replica: in this process, on real sockets and disks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.ha.test_failover import Cluster, manager, until

from batonmq.broker.replica import hand_back
from batonmq.broker.replica.hand_back import HandBacks
from batonmq.net.errors import CallTimeout, NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import HandBack, HandBackResponse
from batonmq.protocol.headers.controller import ElectMaster
from batonmq.protocol.registry import Header

KEYS = {"enable_hand_back": True, "hand_back_delay": 200, "all_ack_in_sync_state_set": False}


class Preferring(Cluster):
    """Replica 0 is the preferred one. One copy is enough for an acknowledgement."""

    async def start_all(self, **keys: object) -> None:
        for number in (0, 1):
            await self.start(number, **{**KEYS, "broker_election_priority": 1 + number, **keys})
            await until(lambda: self.master == 0)  # otherwise the second one may be elected first
        await self.whole()

    async def fail_over(self) -> None:
        """Replica 1 becomes master, and replica 0 comes back."""
        await self.kill(0)
        await until(lambda: self.master == 1)
        await self.start(0, **{**KEYS, "broker_election_priority": 1})

    async def ask(self, *, to: int, **fields: int) -> HandBackResponse:
        header = HandBack(**{"broker_name": "b", "broker_id": 1, "epoch": 0, "priority": 0, **fields})
        answer = await self.client.call(f"127.0.0.1:{self.ports[1 + 2 * to]}", header, timeout_ms=10_000)
        assert isinstance(answer.header, HandBackResponse)
        return answer.header


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Preferring]:
    monkeypatch.setattr(hand_back, "LOOK_S", 0.05)
    made = Preferring(tmp_path)
    await made.start_controller()
    yield made
    await made.client.close()
    for number in list(made.brokers):
        await made.kill(number)
    if made.controller is not None:
        await made.controller.stop()


async def test_the_preferred_replica_gets_the_role_back_and_nothing_is_lost(
    cluster: Preferring, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_role = HandBacks._next_role

    async def late(self: HandBacks, epoch: int) -> None:
        await asyncio.sleep(0.1)
        await next_role(self, epoch)

    # The former master is the last to learn that it is no longer master.
    monkeypatch.setattr(HandBacks, "_next_role", late)
    await cluster.start_all()
    acknowledged: list[int] = []
    numbers = itertools.count()

    async def send_on() -> None:
        while True:
            number = next(numbers)
            try:
                await cluster.send(b"m%d" % number)
            except (AssertionError, MQError, NetError):  # no master, or no longer
                await asyncio.sleep(0.005)
            else:
                acknowledged.append(number)

    for _ in range(3):
        # A kill may lose what one replica alone acknowledged; a hand-back may not. So sends begin after it.
        await cluster.fail_over()
        monkeypatch.setattr(manager(cluster.brokers[1])._notices, "notified", lambda epoch: None)
        senders = [asyncio.create_task(send_on()) for _ in range(4)]
        await until(lambda: cluster.master == 0)
        enough = len(acknowledged) + 50
        while len(acknowledged) < enough:
            await asyncio.sleep(0.01)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        monkeypatch.delattr(manager(cluster.brokers[1])._notices, "notified")
        await cluster.whole()
        await cluster.equal()
    log = cluster.log(0)
    assert [number for number in acknowledged if log.count(b"m%d\x01T" % number) == 0] == []


async def test_a_slave_that_does_not_catch_up_does_not_get_it(
    cluster: Preferring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start_all()
    monkeypatch.setattr(HandBacks, "_has_all", lambda *_: False)
    monkeypatch.setattr(hand_back, "CATCH_UP_S", 0.05)
    await cluster.fail_over()
    await until(lambda: "did not have all of the log" in caplog.text)
    await cluster.send(b"x")
    assert cluster.master == 1


async def test_without_controllers_the_master_continues_at_once(
    cluster: Preferring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody got the request, so there is nothing to wait for."""
    await cluster.start_all()
    monkeypatch.setattr(hand_back, "UNKNOWN_S", 60)
    monkeypatch.setitem(KEYS, "hand_back_delay", 1_000)
    await cluster.fail_over()
    await cluster.whole()
    assert cluster.controller is not None
    await cluster.controller.stop()
    cluster.controller = None
    for _ in range(2):  # the first attempt knows a leader, the second one finds none
        await until(lambda: "did not hand the master role" in caplog.text)
        await cluster.send(b"x")
        assert cluster.master == 1
        caplog.clear()
    assert "outcome unknown" not in caplog.text


async def test_when_the_outcome_is_unknown_the_master_waits_for_its_role_and_continues(
    cluster: Preferring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start_all()
    monkeypatch.setattr(hand_back, "UNKNOWN_S", 0.1)
    await cluster.fail_over()
    calls = manager(cluster.brokers[1])._controllers

    async def unanswered(header: Header, *arguments: Any, **options: Any) -> Any:
        if isinstance(header, ElectMaster):
            raise CallTimeout("c:1", "no answer in time")
        return await call(header, *arguments, **options)

    call = calls.call
    monkeypatch.setattr(calls, "call", unanswered)
    await until(lambda: "outcome unknown" in caplog.text and "did not hand the master role" in caplog.text)
    await cluster.send(b"x")
    assert cluster.master == 1


async def test_a_master_that_stops_amid_the_election_appends_nothing_more(
    cluster: Preferring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know of the new master yet: what it appended, it would acknowledge with one copy."""
    await cluster.start_all()
    await cluster.fail_over()
    stopping, elected = manager(cluster.brokers[1]), asyncio.Event()
    call = stopping._controllers.call

    async def unanswered(header: Header, *arguments: Any, **options: Any) -> Any:
        answer = await call(header, *arguments, **options)
        if isinstance(header, ElectMaster):
            elected.set()
            raise CallTimeout("c:1", "no answer in time")
        return answer

    monkeypatch.setattr(stopping._controllers, "call", unanswered)
    monkeypatch.setattr(stopping.core, "next_role", lambda: None)  # it hears of the new master late
    await elected.wait()
    waits = asyncio.ensure_future(cluster.send(b"lost?", 1))
    await asyncio.sleep(0.1)
    assert not waits.done()
    began = asyncio.get_running_loop().time()
    await cluster.brokers.pop(1).stop()
    assert asyncio.get_running_loop().time() - began < 2
    with pytest.raises(MQError) as caught:
        await waits
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"epoch": 7}, "not the master of epoch 7"),
        ({"broker_id": 5}, "not in the SyncStateSet"),
        ({"broker_id": -1}, "not in the SyncStateSet"),
    ],
)
async def test_requests_that_no_replica_sends(
    cluster: Preferring, fields: dict[str, int], reason: str
) -> None:
    await cluster.start_all()
    master = cluster.master
    assert master is not None
    epoch = cluster.brokers[master].broker.role.epoch
    with pytest.raises(MQError, match=reason) as caught:
        await cluster.ask(to=master, **{"epoch": epoch, **fields})
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert not (await cluster.ask(to=master, epoch=epoch, priority=100)).elected
    with pytest.raises(MQError, match="not the master"):
        await cluster.ask(to=1 - master, epoch=epoch)
    await cluster.send(b"x")


async def test_it_must_be_enabled_at_the_master(cluster: Preferring) -> None:
    await cluster.start_all(enable_hand_back=False)
    master = cluster.master
    assert master is not None
    with pytest.raises(MQError, match="enableHandBack is false"):
        await cluster.ask(to=master, epoch=cluster.brokers[master].broker.role.epoch)


async def test_a_learner_does_not_ask_for_the_role(
    cluster: Preferring, caplog: pytest.LogCaptureFixture
) -> None:
    """The master would refuse it each time: it is never in the SyncStateSet."""
    await cluster.start(0, **KEYS, broker_election_priority=2)
    await until(lambda: cluster.master == 0)
    learner = await cluster.start(1, learner=True, **KEYS, broker_election_priority=1)
    replication = learner.broker.replication
    assert replication is not None
    await until(lambda: replication.following)
    await asyncio.sleep(KEYS["hand_back_delay"] / 1000 + 10 * hand_back.LOOK_S)
    assert "did not hand the master role back" not in caplog.text
    assert cluster.master == 0
