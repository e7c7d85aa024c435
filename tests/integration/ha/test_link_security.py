"""The replication port of real processes with a shared secret and with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.certificates import Authority, authority
from tests.integration.group import anonymous_mib, exchange, read
from tests.integration.ha.replica_group import ReplicaGroup, descriptors, ha_address

from batonmq.ha.proof import SlaveProof, key_of
from batonmq.protocol.ha_frames import Ack, SlaveHandshake
from batonmq.protocol.headers.broker.admin import GetBrokerConfig

SECRET = "correct-horse-battery-staple"
FORGED = SlaveHandshake(2).encode() + Ack(0).encode()
FLOOD_S = 2.0

MakeGroup = Callable[..., ReplicaGroup]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeGroup]:
    groups: list[ReplicaGroup] = []

    def made(**settings: object) -> ReplicaGroup:
        groups.append(ReplicaGroup(tmp_path / "group", {"haSecret": "", **settings}, replicas=2))
        return groups[-1]

    yield made
    for group in groups:
        await group.close()


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ca")


async def switch_to_and_fro(group: ReplicaGroup) -> None:
    """Each replica is master and slave of the other, and nothing is lost on the way."""
    for _ in range(2):
        await group.send(20, 1000)
        master = await group.master()
        await group.elect(next(broker for broker in group.cluster.brokers if broker is not master))
    await group.check()


async def test_a_group_with_a_secret_keeps_other_peers_out_and_never_shows_it(make: MakeGroup) -> None:
    group = make(haSecret=SECRET)
    await group.up()
    await switch_to_and_fro(group)
    master = await group.master()
    before, open_before = anonymous_mib(master.pid), descriptors(master)
    hostile = [
        FORGED,
        SlaveProof(key_of("x" * 16), bytes(32)).open() + FORGED,
        SlaveProof(key_of(SECRET), bytes(32)).open() + os.urandom(1 << 20),
        os.urandom(1 << 20),
        b"BMQP" + bytes(31),
    ]
    deadline = asyncio.get_running_loop().time() + FLOOD_S

    async def flood(data: bytes) -> bytes:
        answer = b""
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(OSError):
                answer = max(answer, await exchange(ha_address(master), data, then_close=True), key=len)
        return answer

    answers = await asyncio.gather(*(flood(data) for data in hostile))
    assert max(map(len, answers)) <= 68, "a challenge at most"
    assert anonymous_mib(master.pid) - before < 20
    lines = group.lines(master, "replication port: 127.0.0.1")
    assert 1 <= len(lines) <= 10, "thousands of attempts, a few lines"
    assert descriptors(master) <= open_before + 3
    info = await group.in_sync(2)
    assert info.master_address == master.address
    await group.check()
    for broker in group.cluster.brokers:
        config = bytes((await group.client.call(broker.address, GetBrokerConfig())).body).decode()
        assert "haSecret=\n" in config
        assert SECRET not in config + read(broker.log_path)


async def test_a_group_with_tls_keeps_other_peers_out(make: MakeGroup, ca: Authority) -> None:
    group = make(**ca.settings("replica"), haSecret=SECRET)
    await group.up()
    await switch_to_and_fro(group)
    master = await group.master()
    before = anonymous_mib(master.pid)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = asyncio.get_running_loop().time() + FLOOD_S
    port = int(ha_address(master).rpartition(":")[2])

    async def flood(tls: ssl.SSLContext | None, data: bytes) -> bytes:
        answer = b""
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(OSError, ssl.SSLError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
                try:
                    writer.write(data)
                    answer += await asyncio.wait_for(reader.read(), 5)
                finally:
                    writer.transport.abort()
        return answer

    answers = await asyncio.gather(
        flood(context, FORGED), flood(None, FORGED), flood(None, b"\x16\x03\x01" + os.urandom(60_000))
    )
    assert answers[0] == b"" and all(FORGED not in each for each in answers)
    assert anonymous_mib(master.pid) - before < 25
    lines = group.lines(master, "replication port: 127.0.0.1")
    assert 1 <= len(lines) <= 10
    await group.in_sync(2)
    await group.check()


@pytest.mark.parametrize("wrong", ["secret", "no secret", "expired", "another authority", "plain"])
async def test_a_replica_that_cannot_prove_itself_is_one_line_on_both_sides(
    make: MakeGroup, ca: Authority, tmp_path: Path, wrong: str
) -> None:
    """The master serves alone, the other lives on and tries again, ever more seldom."""
    with_tls = wrong in ("expired", "another authority", "plain")
    group = make(**(ca.settings("replica") if with_tls else {"haSecret": SECRET}))
    second = group.cluster.brokers[1]
    outsider: dict[str, dict[str, object]] = {
        "secret": {"haSecret": "not-the-group's-secret"},
        "no secret": {"haSecret": ""},
        "expired": ca.settings("expired", days=-1) if with_tls else {},
        "another authority": authority(tmp_path / "other").settings("replica") if with_tls else {},
        "plain": {"haTlsEnable": "false"},
    }
    second.settings = {**second.settings, **outsider[wrong]}
    await group.up(in_sync=1)
    first = group.cluster.brokers[0]
    assert (await group.master()) is first
    await asyncio.sleep(3.0)
    at_slave = group.lines(second, "WARNING", "batonmq.ha")
    assert len(at_slave) == 1, at_slave
    at_master = group.lines(first, "WARNING", "replication port")
    assert len(at_master) <= 1, at_master
    assert at_master or wrong in ("secret", "another authority"), "there the slave is the first to notice"
    for broker in group.cluster.brokers:
        log = read(broker.log_path)
        assert "Traceback" not in log and SECRET not in log
    assert group.lines(second, "replicating as slave")
    assert not (await group.ha_status(first)).ha_connection_info
    assert len((await group.in_sync(1)).in_sync_replicas) == 1
    await group.check()


async def test_keys_that_do_not_fit_stop_the_broker_with_one_line(make: MakeGroup) -> None:
    group = make()
    broker = group.cluster.brokers[0]
    for settings, words in (
        ({"haTlsEnable": "true"}, "needs tls.server.certPath"),
        ({"haSecret": "hunter2"}, "haSecret: must be at least 16 characters"),
    ):
        broker.settings = {**group.cluster.brokers[1].settings, **settings}
        broker.start(wait=False)
        assert await asyncio.to_thread(lambda: broker.process.wait(20)) == 1  # type: ignore[union-attr]
        last = read(broker.log_path).strip().splitlines()[-1]
        assert words in last and str(broker.config_path) in last and "hunter2" not in last
