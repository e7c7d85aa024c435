"""The replication port with secret and TLS: members get through, other peers get no data and move nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from batonmq.common.config import ConfigError
from batonmq.ha import listener
from batonmq.ha.config import HAConfig
from batonmq.ha.proof import SlaveProof, key_of
from batonmq.ha.security import LinkSecurity, security_of
from batonmq.net.tls import TlsConfig
from batonmq.protocol.ha_frames import Ack, SlaveHandshake
from tests.certificates import Authority, authority

from .conftest import until

PEM_FILES = ("server_cert_path", "server_key_path", "server_trust_cert_path")
SECRET = LinkSecurity(key=key_of("the group's own secret"))


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "other")


def with_tls(tls: TlsConfig, secret: str = "") -> LinkSecurity:
    return security_of(HAConfig(ha_tls_enable=True, ha_secret=secret), tls)


async def say(replica: Any, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Write to a replication port; what it says until it closes."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", replica.ha.port, ssl=tls)
    except (ssl.SSLError, ConnectionError):
        return b""
    try:
        writer.write(data)
        async with asyncio.timeout(5):
            return await reader.read()
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()


FORGED = SlaveHandshake(2).encode() + Ack(0).encode()


async def copies_and_confirms(master: Any, slave: Any) -> None:
    await slave.follow(master, master.ha.epoch)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    end = master.put(b"x" * 50_000, b"y")
    await until(lambda: slave.store.confirm_offset == end)
    assert slave.log() == master.log()


async def test_replicas_that_share_a_secret(replicas):
    master, slave = await replicas(2, security=SECRET)
    await master.lead(1)
    await copies_and_confirms(master, slave)
    assert "secret" not in repr(HAConfig(ha_secret="sixteen letters!!")).replace("ha_secret", "")


@pytest.mark.parametrize(
    "data", [FORGED, SlaveProof(key_of("x" * 16), bytes(32)).open() + FORGED, b"\0" * 64, b"BMQP"]
)
async def test_without_the_secret_a_peer_gets_no_data_and_moves_nothing(replicas, caplog, data, monkeypatch):
    monkeypatch.setattr("batonmq.ha.autoswitch.master_link.INTRODUCTION_MS", 300)
    (master,) = await replicas(1, security=SECRET)
    await master.lead(1, 1, 2)
    master.put(b"confidential")
    said = await say(master, data)
    assert len(said) in (0, 68), "a challenge at most"
    assert b"confidential" not in said
    assert master.store.confirm_offset == 0 and not master.ha.replicas()
    assert len([line for line in caplog.messages if "replication port: 127.0.0.1" in line]) == 1


@pytest.mark.parametrize(
    ("at_master", "at_slave", "words"),
    [
        (SECRET, LinkSecurity(key=key_of("not the group's secret")), "the master's haSecret is not the one"),
        (
            SECRET,
            LinkSecurity(),
            "closed by the master before it said anything: if this goes on, are haSecret",
        ),
        (
            LinkSecurity(),
            SECRET,
            "before it proved to know haSecret: is the same one set there? And haTlsEnable?",
        ),
    ],
    ids=["another", "none at the slave", "none at the master"],
)
async def test_secrets_that_differ_are_one_line_and_no_storm(replicas, caplog, at_master, at_slave, words):
    (master,) = await replicas(1, security=at_master)
    (slave,) = await replicas(1, security=at_slave)
    await master.lead(1, 1, 2)
    master.put(b"x")
    accepted = count_links(master)
    await slave.follow(master, 1)
    await asyncio.sleep(1.0)
    assert 2 <= len(accepted) <= 7
    assert not slave.store.max_offset and not master.store.confirm_offset
    lost = [line for line in caplog.messages if line.startswith("lost master")]
    assert len(lost) == 1 and words in lost[0]
    if slave.ha.local.security.key is not None and at_master is SECRET:
        assert "is haSecret the same on both sides?" in caplog.text
    assert len([line for line in caplog.messages if "replication port: 127.0.0.1" in line]) <= 1


def count_links(replica: Any) -> list[Any]:
    admitted: list[Any] = []
    admit = replica.ha.term.admit
    replica.ha.term.admit = lambda link: (admitted.append(link), admit(link))[1]
    return admitted


async def test_replicas_with_certificates_of_one_authority(replicas, ca):
    (master,) = await replicas(1, security=with_tls(ca.tls("one"), "and a secret as well"))
    (slave,) = await replicas(1, security=with_tls(ca.tls("two"), "and a secret as well"))
    await master.lead(1)
    await copies_and_confirms(master, slave)
    await master.ha.become_slave(None, 2, 1)
    await slave.lead(2)
    await master.follow(slave, 2)
    end = slave.put(b"the other way round")
    await until(lambda: master.store.max_offset == end)


async def test_certificates_of_a_running_group_can_be_replaced(replicas, ca, other_ca, tmp_path, monkeypatch):
    """A replica that knows only the new authority can follow a master, and be followed by a slave."""
    monkeypatch.setattr("batonmq.net.live_context.LOOK_EVERY_S", 0.0)
    made = [
        TlsConfig(**{key: str(tmp_path / f"{name}.{key}") for key in PEM_FILES}) for name in ("one", "two")
    ]

    def issue(authority: Authority) -> None:
        for name, tls in zip(("one", "two"), made, strict=True):
            source = authority.tls(name)
            for key in PEM_FILES:
                shutil.copyfile(getattr(source, key), getattr(tls, key))

    issue(ca)
    (master,) = await replicas(1, security=with_tls(made[0]))
    (slave,) = await replicas(1, security=with_tls(made[1]))
    await master.lead(1)
    await copies_and_confirms(master, slave)
    issue(other_ca)
    (fresh,) = await replicas(1, security=with_tls(other_ca.tls("three")))
    await fresh.follow(master, 1)
    await until(lambda: fresh.store.max_offset == master.store.max_offset)
    await master.ha.become_slave(None, 2, 1)
    await fresh.lead(2)
    await slave.follow(fresh, 2)
    end = fresh.put(b"after the change")
    await until(lambda: slave.store.max_offset == end)


@pytest.mark.parametrize("who", ["plain", "no certificate", "another authority", "expired", "garbage"])
async def test_who_has_no_certificate_of_ours_gets_and_moves_nothing(replicas, caplog, ca, other_ca, who):
    (master,) = await replicas(1, security=with_tls(ca.tls("one")))
    await master.lead(1, 1, 2)
    master.put(b"confidential")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if who in ("another authority", "expired"):
        issuer, days = (other_ca, 2) if who == "another authority" else (ca, -1)
        context.load_cert_chain(*issuer.issue(who.split()[0], days=days))
    data = b"\x16\x03garbage that is not a hello" * 20 if who == "garbage" else FORGED
    said = await say(master, data, None if who in ("plain", "garbage") else context)
    assert b"confidential" not in said
    await until(lambda: any("replication port: 127.0.0.1" in line for line in caplog.messages))
    assert master.store.confirm_offset == 0 and not master.ha.replicas()
    assert len([line for line in caplog.messages if "replication port: 127.0.0.1" in line]) == 1
    assert not master.ha.listener.handshakes


@pytest.mark.parametrize("side", ["master", "slave"])
async def test_an_expired_certificate_is_one_line_and_no_storm(replicas, caplog, ca, side):
    expired, valid = with_tls(ca.tls("expired", days=-1)), with_tls(ca.tls("one"))
    (master,) = await replicas(1, security=expired if side == "master" else valid)
    (slave,) = await replicas(1, security=expired if side == "slave" else valid)
    await master.lead(1, 1, 2)
    master.put(b"x")
    await slave.follow(master, 1)
    await asyncio.sleep(1.0)
    assert not slave.store.max_offset and not master.store.confirm_offset
    at_slave = [line for line in caplog.messages if line.startswith(("lost master", "cannot connect"))]
    at_master = [line for line in caplog.messages if "failed the TLS handshake" in line]
    assert len(at_slave) == len(at_master) == 1, caplog.messages
    assert "expired" in (at_slave if side == "master" else at_master)[0]


async def test_links_of_unregistered_slaves_make_room_for_replicas(replicas, monkeypatch, caplog):
    monkeypatch.setattr(listener, "MAX_LINKS", 8)
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    writers = []
    for number in range(40):
        _, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
        writer.write(SlaveHandshake(100 + number).encode() + Ack(0).encode())
        writers.append(writer)
    await until(lambda: "one connection too many" in caplog.text)
    end = master.put(b"x")
    await until(lambda: master.store.confirm_offset == end)
    assert len(master.ha.listener.links) <= 8
    assert master.ha.acked_by(3) == -1, "forty unregistered slaves are not a third copy"
    assert [r.broker_id for r in master.ha.replicas() if r.in_sync] == [2]
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_nobody_is_counted_as_a_second_copy_by_the_masters_own_id_3015(replicas):
    (master,) = await replicas(1)
    await master.lead(1)
    await say(master, SlaveHandshake(1).encode() + Ack(0).encode())
    master.put(b"x")
    assert master.ha.acked_by(2) == -1 and not master.ha.replicas()


async def test_flow_control_holds_a_link_to_its_rate(replicas):
    config = HAConfig(ha_flow_control_enable=True, max_ha_transfer_byte_in_second=500_000)
    master, slave = await replicas(2, config)
    await master.lead(1)
    for _ in range(20):
        master.put(bytes(50_000))
    began = asyncio.get_running_loop().time()
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset, 10)
    took = asyncio.get_running_loop().time() - began
    assert 1.7 < took < 4, "a megabyte at half a megabyte a second, a tenth of a second's worth at once"
    assert slave.log() == master.log()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, r"needs tls\.server\.certPath"),
        ({"server_cert_path": "x.pem"}, r"tls\.server\.trustCertPath"),
        ({"server_cert_path": "x.pem", "server_trust_cert_path": "y.pem"}, r"tls\.server\.certPath=x\.pem"),
    ],
)
def test_certificates_that_are_missing_are_named(keys: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_tls(TlsConfig(**keys))


def test_files_of_the_connecting_side_are_used_where_given(ca: Authority, tmp_path: Path) -> None:
    certificate, key = ca.issue("one")
    missing = TlsConfig(
        server_cert_path=str(certificate),
        server_key_path=str(key),
        server_trust_cert_path=str(ca.certificate),
        client_trust_cert_path=str(tmp_path / "missing.pem"),
    )
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath=.*missing"):
        with_tls(missing)
