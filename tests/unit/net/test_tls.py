"""TLS on one port with plain text, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from batonmq.common.config import ConfigError
from batonmq.common.config_loader import load
from batonmq.net import (
    ConnectFailed,
    Connection,
    ConnectionLost,
    Dispatcher,
    Interceptor,
    Limits,
    RemotingClient,
    RemotingServer,
    Reply,
)
from batonmq.net.tls import TlsConfig, TlsPeer, client_context, distinguished_name, server_tls
from batonmq.net.tls_sniffer import TlsSniffer
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command, encode

ECHO = 30001


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed; it makes the test's certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *[
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-keyout",
            ],
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)


def on_both_loops(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())


def make_server(config: TlsConfig, **limits: int) -> RemotingServer:
    table = Dispatcher()
    table.on_code(ECHO, lambda request: Reply(body=bytes(request.command.body)))
    return RemotingServer(table, "127.0.0.1", 0, tls=server_tls(config), limits=Limits(**limits))


async def echo(client: RemotingClient, server: RemotingServer, size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    answers = await asyncio.gather(
        *(client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}, body)) for _ in range(3))
    )
    assert all(answer.body == body for answer in answers)


def test_permissive_serves_both_on_one_port(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    server_config = TlsConfig(server_cert_path=cert, server_key_path=key)
    client_config = TlsConfig(enable=True, client_auth_server=True, client_trust_cert_path=cert)

    async def main() -> None:
        server = make_server(server_config)
        await server.start()
        for context in (client_context(client_config), client_context(TlsConfig(enable=True)), None):
            client = RemotingClient(tls=context)
            for size in (256, 1 << 20):
                await echo(client, server, size)
            await client.close()
        await server.stop()
        assert not server.connections and not server._sniffers

    on_both_loops(main)


def test_enforcing_refuses_plain_text(certificate: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    cert, key = certificate
    config = TlsConfig(server_mode="enforcing", server_cert_path=cert, server_key_path=key)

    async def main() -> None:
        server = make_server(config)
        await server.start()
        plain, secure = RemotingClient(), RemotingClient(tls=client_context(TlsConfig(enable=True)))
        with pytest.raises(ConnectionLost):
            await echo(plain, server, 256)
        await echo(secure, server, 256)
        await plain.close()
        await secure.close()
        await server.stop()

    on_both_loops(main)
    assert caplog.text.count("enforcing; closing") == 2


def test_the_log_says_why_a_handshake_failed(
    certificate: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A client that rejects the certificate and leaves causes an error without a text."""
    cert, key = certificate
    config = TlsConfig(server_mode="enforcing", server_cert_path=cert, server_key_path=key)

    async def main() -> None:
        server = make_server(config)
        await server.start()
        client = RemotingClient(tls=ssl.create_default_context())
        with pytest.raises(ConnectFailed):
            await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}))
        await client.close()
        await server.stop()

    on_both_loops(main)
    reasons = [message.partition("failed the TLS handshake: ")[2] for message in caplog.messages]
    assert reasons and all(reasons)


def test_a_client_that_does_not_trust_the_server_fails_to_connect(certificate: tuple[str, str]) -> None:
    cert, key = certificate

    async def main() -> None:
        server = make_server(TlsConfig(server_cert_path=cert, server_key_path=key))
        await server.start()
        client = RemotingClient(tls=ssl.create_default_context())
        with pytest.raises(ConnectFailed):
            await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}))
        await client.close()
        good = RemotingClient(tls=client_context(TlsConfig(enable=True)))
        await echo(good, server, 256)
        await good.close()
        await server.stop()

    on_both_loops(main)


def test_a_server_that_speaks_plain_text_only_is_distinguished_from_one_that_is_down() -> None:
    async def main() -> None:
        server = make_server(TlsConfig(server_mode="disabled"))
        await server.start()
        client = RemotingClient(tls=client_context(TlsConfig(enable=True)))
        with pytest.raises(ConnectFailed, match="TLS handshake; perhaps it speaks plain text only"):
            await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}))
        await server.stop()
        with pytest.raises(ConnectFailed, match="Connection refused"):
            await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}))
        await client.close()

    on_both_loops(main)


def test_a_client_certificate_can_be_required(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    config = TlsConfig(
        server_cert_path=cert,
        server_key_path=key,
        server_need_client_auth="require",
        server_auth_client=True,
        server_trust_cert_path=cert,
    )

    async def main() -> None:
        server = make_server(config)
        await server.start()
        without = RemotingClient(tls=client_context(TlsConfig(enable=True)))
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await echo(without, server, 256)
        own = TlsConfig(enable=True, client_cert_path=cert, client_key_path=key)
        with_certificate = RemotingClient(tls=client_context(own))
        await echo(with_certificate, server, 256)
        await without.close()
        await with_certificate.close()
        await server.stop()

    on_both_loops(main)


@pytest.mark.parametrize("first", [1, 200])
def test_a_hello_may_come_in_pieces(
    certificate: tuple[str, str], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second piece is there as soon as the first has been read, before TLS has been put in place."""
    cert, key = certificate
    config = TlsConfig(server_cert_path=cert, server_key_path=key)
    context = client_context(TlsConfig(enable=True))
    assert context is not None
    rest: list[tuple[socket.socket, bytes]] = []
    real = TlsSniffer.data_received

    def data_received(sniffer: TlsSniffer, data: bytes) -> None:
        real(sniffer, data)
        while rest:
            peer, piece = rest.pop()
            peer.send(piece)

    monkeypatch.setattr(TlsSniffer, "data_received", data_received)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = make_server(config)
        await server.start()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.setblocking(False)
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            hello = outgoing.read()
            rest.append((peer, hello[first:]))
            await loop.sock_sendall(peer, hello[:first])
            async with asyncio.timeout(5):
                shaken = False
                while not shaken:
                    incoming.write(await loop.sock_recv(peer, 1 << 16))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                        shaken = True
                tls.write(encode(Command(ECHO, {}, b"x")))
                await loop.sock_sendall(peer, outgoing.read())
                answer = b""
                while not answer:
                    incoming.write(await loop.sock_recv(peer, 1 << 16))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        answer = tls.read(1 << 16)
        assert answer.endswith(b"x")
        await server.stop()

    on_both_loops(main)


def test_garbage_and_silence_instead_of_a_handshake_are_ended(certificate: tuple[str, str]) -> None:
    cert, key = certificate

    async def main() -> None:
        server = make_server(TlsConfig(server_cert_path=cert, server_key_path=key), idle_timeout_ms=150)
        await server.start()
        for first in (b"\x16garbage that is not a hello" * 20, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(first)
            try:
                while await asyncio.wait_for(reader.read(100), 5):
                    pass  # a TLS alert may come first
            except ConnectionResetError:
                pass
            writer.close()
        assert not server._sniffers
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16")
        await asyncio.sleep(0.02)
        await server.stop()  # with a handshake under way
        writer.close()

    on_both_loops(main)


@pytest.mark.parametrize("whole", [False, True], ids=["first byte", "hello"])
def test_handshakes_that_never_end_are_forgotten(certificate: tuple[str, str], whole: bool) -> None:
    """They would count as connections for ever, and in the end nobody else would be let in."""
    cert, key = certificate
    context = client_context(TlsConfig(enable=True))
    assert context is not None

    async def main() -> None:
        server = make_server(TlsConfig(server_cert_path=cert, server_key_path=key), idle_timeout_ms=150)
        await server.start()
        outgoing = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
        hello = outgoing.read()
        writers = []
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(hello if whole else hello[:1])
            writers.append(writer)
        while len(server._sniffers) < 3:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(5):
            while server._sniffers:
                await asyncio.sleep(0.01)
        for writer in writers:
            writer.close()
        await server.stop()

    on_both_loops(main)


def test_silent_connections_are_bounded_as_others(
    certificate: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes a file descriptor before it has said a word."""
    cert, key = certificate

    async def main() -> None:
        server = make_server(TlsConfig(server_cert_path=cert, server_key_path=key), max_connections=3)
        await server.start()
        peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        ended = await asyncio.gather(
            *(asyncio.wait_for(reader.read(), 0.3) for reader, _ in peers), return_exceptions=True
        )
        assert [type(each) is TimeoutError for each in ended].count(True) == 3
        assert len(server._sniffers) == 3
        for _, writer in peers:
            writer.close()
        await server.stop()

    on_both_loops(main)
    assert "refused: 3 connections are open already" in caplog.text


def test_what_a_refused_connection_asks_for_is_not_done(certificate: tuple[str, str]) -> None:
    """Its first request came along with its first byte."""
    cert, key = certificate
    served: list[Command] = []

    def refuse(connection: Connection) -> None:
        raise MQError(ResponseCode.NO_PERMISSION, "not here")

    async def main() -> None:
        table = Dispatcher()
        table.on_code(ECHO, lambda request: served.append(request.command))
        table.intercept(Interceptor(opened=refuse))
        tls = server_tls(TlsConfig(server_cert_path=cert, server_key_path=key))
        server = RemotingServer(table, "127.0.0.1", 0, tls=tls)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode(Command(ECHO, {})))
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await server.stop()

    on_both_loops(main)
    assert not served


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tls.server.mode": "maybe"}, "tls.server.mode=maybe"),
        ({"tls.server.mode": "enforcing"}, "needs tls.server.certPath"),
        ({"tls.server.need.client.auth": "x"}, "none, optional or require"),
    ],
)
def test_bad_settings_are_named(keys: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(None, TlsConfig, overrides=keys)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath=.*missing\.pem"):
        server_tls(TlsConfig(server_cert_path=missing))
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath=.*missing\.pem"):
        client_context(TlsConfig(enable=True, client_auth_server=True, client_trust_cert_path=missing))
    assert server_tls(TlsConfig()) is None and client_context(TlsConfig()) is None


def test_a_required_certificate_that_would_not_be_verified_is_refused(certificate: tuple[str, str]) -> None:
    """Otherwise the server would ask for none, without a word."""
    cert, key = certificate
    with pytest.raises(ConfigError, match=r"needs tls\.server\.authClient=true"):
        TlsConfig(server_cert_path=cert, server_key_path=key, server_need_client_auth="require")


def test_a_connection_knows_its_tls_and_the_subject_of_a_verified_certificate(
    certificate: tuple[str, str],
) -> None:
    cert, key = certificate
    seen: list[TlsPeer | None] = []
    anonymous = TlsConfig(enable=True)
    known = TlsConfig(enable=True, client_cert_path=cert, client_key_path=key)

    async def main(auth: str, verify: bool, config: TlsConfig | None) -> None:
        server_config = TlsConfig(
            server_cert_path=cert,
            server_key_path=key,
            server_need_client_auth=auth,
            server_auth_client=verify,
            server_trust_cert_path=cert,
        )
        table = Dispatcher()
        table.on_code(ECHO, lambda request: Reply())
        table.intercept(Interceptor(opened=lambda connection: seen.append(connection.tls)))
        server = RemotingServer(table, "127.0.0.1", 0, tls=server_tls(server_config))
        await server.start()
        client = RemotingClient(tls=None if config is None else client_context(config))
        await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}))
        mine = client.connected(f"127.0.0.1:{server.port}")
        assert mine is not None and (mine.tls is None) == (config is None)
        await client.close()
        await server.stop()

    on_both_loops(partial(main, "optional", True, None))
    assert seen == [None, None]
    seen.clear()
    on_both_loops(partial(main, "optional", True, known))
    on_both_loops(partial(main, "optional", True, anonymous))
    on_both_loops(partial(main, "none", False, known))
    facts = [each for each in seen if each is not None]
    assert [each.subject for each in facts] == ["CN=localhost"] * 2 + [None] * 4
    assert {each.version for each in facts} == {"TLSv1.3"} and all(each.cipher for each in facts)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([[("commonName", "shop")]], "CN=shop"),
        (
            [[("countryName", "DE")], [("organizationName", "A, B")], [("commonName", "shop")]],
            "CN=shop,O=A\\, B,C=DE",
        ),
        ([[("commonName", "a"), ("userId", "b")]], "CN=a+UID=b"),
        ([[("commonName", ' #,+"\\<>;= ')]], 'CN=\\ #\\,\\+\\"\\\\\\<\\>\\;\\=\\ '),
        ([[("commonName", "#1")], [("emailAddress", "a@b")]], "emailAddress=a@b,CN=\\#1"),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_rfc_4514_has_it(names: list[list[tuple[str, str]]], text: str) -> None:
    assert distinguished_name(names) == text
