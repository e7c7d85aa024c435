"""Certificates, keys and trusted authorities that are replaced while a server runs."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority, authority

from batonmq.common.config import ConfigError
from batonmq.net import ConnectFailed, Dispatcher, RemotingClient, RemotingServer, Reply, live_context
from batonmq.net.tls import TlsConfig, client_tls, server_tls
from batonmq.protocol.frame import Command

ECHO = 30001


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "old")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "new")


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_context, "LOOK_EVERY_S", 0.0)


class Files:
    """The files of one server or client, and their replacement in the way of an operator."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "own.pem"
        self.key = directory / "own.key"
        self.trust = directory / "trust.pem"

    def put(self, source: Path, target: Path) -> None:
        fresh = target.with_suffix(".new")
        shutil.copyfile(source, fresh)
        fresh.replace(target)

    def issue(self, by: Authority) -> None:
        certificate, key = by.issue("server")
        self.put(key, self.key)
        self.put(certificate, self.certificate)


@pytest.fixture
def files(tmp_path: Path, old: Authority) -> Files:
    made = Files(tmp_path)
    made.issue(old)
    made.put(old.certificate, made.trust)
    return made


@pytest.fixture
async def server(files: Files) -> AsyncIterator[RemotingServer]:
    table = Dispatcher()
    table.on_code(ECHO, lambda request: Reply(body=bytes(request.command.body)))
    config = TlsConfig(server_cert_path=str(files.certificate), server_key_path=str(files.key))
    server = RemotingServer(table, "127.0.0.1", 0, tls=server_tls(config))
    await server.start()
    yield server
    await server.stop()


def client_trusting(path: Path) -> RemotingClient:
    config = TlsConfig(enable=True, client_auth_server=True, client_trust_cert_path=str(path))
    return RemotingClient(tls=client_tls(config))


async def echo(client: RemotingClient, server: RemotingServer) -> None:
    answer = await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}, b"x"))
    assert answer.body == b"x"


async def is_trusted(server: RemotingServer, by: Path) -> bool:
    """Whether a new connection gets through."""
    client = client_trusting(by)
    try:
        await echo(client, server)
    except ConnectFailed:
        return False
    finally:
        await client.close()
    return True


async def test_new_connections_get_the_new_certificate_and_open_ones_continue(
    server: RemotingServer, files: Files, old: Authority, new: Authority
) -> None:
    open_before = client_trusting(old.certificate)
    await echo(open_before, server)
    files.issue(new)
    assert await is_trusted(server, new.certificate)
    assert not await is_trusted(server, old.certificate)
    await echo(open_before, server)
    await open_before.close()


async def test_a_certificate_without_its_key_leaves_the_old_pair_in_use(
    server: RemotingServer, files: Files, old: Authority, new: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificate, key = new.issue("server")
    files.put(certificate, files.certificate)
    for _ in range(3):
        assert await is_trusted(server, old.certificate)
    assert caplog.text.count("cannot be used, the previous ones stay in use: tls.server.certPath=") == 1
    files.put(key, files.key)
    assert await is_trusted(server, new.certificate)
    assert caplog.text.count("new connections use them") == 1


async def test_files_that_could_not_be_read_at_first_are_used_without_another_change(
    server: RemotingServer,
    files: Files,
    old: Authority,
    new: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A new key belongs to root for a moment, or all descriptors are in use: no file changes afterwards."""
    load = ssl.SSLContext.load_cert_chain
    failures = [errno.EACCES, errno.EMFILE, errno.EMFILE]

    def failing(context: ssl.SSLContext, *args: Any) -> None:
        if failures:
            number = failures.pop(0)
            raise OSError(number, os.strerror(number))
        load(context, *args)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", failing)
    files.issue(new)
    for _ in range(3):
        assert await is_trusted(server, old.certificate)
    assert await is_trusted(server, new.certificate)
    assert caplog.text.count("the previous ones stay in use") == 2, "once for each reason"


async def test_a_file_that_is_gone_for_a_while_changes_nothing(
    server: RemotingServer, files: Files, old: Authority
) -> None:
    files.certificate.rename(files.certificate.with_suffix(".away"))
    assert await is_trusted(server, old.certificate)
    files.certificate.with_suffix(".away").rename(files.certificate)
    assert await is_trusted(server, old.certificate)


async def test_a_client_forgets_an_authority_that_was_replaced(
    server: RemotingServer, files: Files, new: Authority
) -> None:
    client = client_trusting(files.trust)
    await echo(client, server)
    files.put(new.certificate, files.trust)
    for connection in list(client._all):
        connection.close()
    with pytest.raises(ConnectFailed):
        await echo(client, server)
    files.issue(new)
    await echo(client, server)
    await client.close()


def test_files_are_looked_at_once_a_second(
    files: Files, old: Authority, new: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_context, "LOOK_EVERY_S", 1.0)
    now_s = 100.0
    built: list[ssl.SSLContext] = []

    def build() -> ssl.SSLContext:
        built.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return built[-1]

    live = live_context.LiveContext(build, [str(files.certificate), ""], lambda: now_s)
    files.issue(new)
    now_s = 100.9
    assert live.current() is built[0]
    now_s = 101.0
    assert live.current() is built[1] and len(built) == 2
    now_s = 103.0
    assert live.current() is built[1] and len(built) == 2


def test_files_that_cannot_be_used_at_the_start_are_an_error(files: Files) -> None:
    files.key.unlink()
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
        server_tls(TlsConfig(server_cert_path=str(files.certificate), server_key_path=str(files.key)))
