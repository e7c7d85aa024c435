"""TLS by RocketMQ's settings (`TlsSystemConfig`): three server modes, PEM files, and the sniffing that lets
one port serve both kinds of client.

RocketMQ reads these keys from Java system properties or the file `tls.config.file`; here they may stand in
the program's own `.conf`. One difference: without a certificate Java's "test mode" invents one that nobody
can verify; we serve plain text then, and refuse `enforcing`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, cast

from batonmq.common.config import ConfigError

log = logging.getLogger(__name__)

TLS_HANDSHAKE_RECORD = 0x16
"""First byte of a TLS client hello. A frame that began with it would be 368 MB long, so it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The `tls.*` keys. Paths name PEM files; an empty path means "none"."""

    server_mode: str = field(default="permissive", metadata={"key": "tls.server.mode"})
    """disabled: plain text only; permissive: both on one port; enforcing: TLS only."""
    server_cert_path: str = field(default="", metadata={"key": "tls.server.certPath"})
    """Certificate chain of this server."""
    server_key_path: str = field(default="", metadata={"key": "tls.server.keyPath"})
    """Private key of this server."""
    server_key_password: str = field(default="", repr=False, metadata={"key": "tls.server.keyPassword"})
    """Password of the private key."""
    server_need_client_auth: str = field(default="none", metadata={"key": "tls.server.need.client.auth"})
    """none, optional or require: whether clients present a certificate; with tls.server.authClient."""
    server_auth_client: bool = field(default=False, metadata={"key": "tls.server.authClient"})
    """Verify client certificates against `tls.server.trustCertPath`."""
    server_trust_cert_path: str = field(default="", metadata={"key": "tls.server.trustCertPath"})
    """Certificate authorities trusted for client certificates."""
    enable: bool = field(default=False, metadata={"key": "tls.enable"})
    """Use TLS for connections that this program opens."""
    client_cert_path: str = field(default="", metadata={"key": "tls.client.certPath"})
    """Certificate chain this program presents as a client."""
    client_key_path: str = field(default="", metadata={"key": "tls.client.keyPath"})
    """Private key this program uses as a client."""
    client_key_password: str = field(default="", repr=False, metadata={"key": "tls.client.keyPassword"})
    """Password of that key."""
    client_auth_server: bool = field(default=False, metadata={"key": "tls.client.authServer"})
    """Verify servers against `tls.client.trustCertPath`; host names are not checked, as in RocketMQ."""
    client_trust_cert_path: str = field(default="", metadata={"key": "tls.client.trustCertPath"})
    """Certificate authorities trusted for servers' certificates."""

    def __post_init__(self) -> None:
        if self.server_mode not in ("disabled", "permissive", "enforcing"):
            raise ConfigError(
                f"tls.server.mode={self.server_mode}: must be disabled, permissive or enforcing"
            )
        if self.server_need_client_auth not in ("none", "optional", "require"):
            value = self.server_need_client_auth
            raise ConfigError(f"tls.server.need.client.auth={value}: must be none, optional or require")
        if self.server_need_client_auth == "require" and not self.server_auth_client:
            # RocketMQ then takes any certificate, which proves nothing. To ask for none would be worse.
            raise ConfigError(
                "tls.server.need.client.auth=require needs tls.server.authClient=true and "
                "tls.server.trustCertPath: certificates of clients are verified here"
            )
        if self.server_mode == "enforcing" and not self.server_cert_path:
            raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")


@dataclass(frozen=True, slots=True)
class TlsPeer:
    """What TLS says about the other side of a connection."""

    version: str
    """As OpenSSL names it: ``TLSv1.3``."""
    cipher: str
    subject: str | None
    """Subject of the certificate it showed, most specific part first (``CN=shop,O=example``, RFC 4514); None
    without a certificate, or with one that was not verified."""


def tls_peer(transport: asyncio.BaseTransport) -> TlsPeer | None:
    """None: the transport is plain text."""
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None:
        return None
    cipher = ssl_object.cipher()
    # An unverified certificate comes as an empty dict.
    certificate = ssl_object.getpeercert()
    return TlsPeer(
        ssl_object.version() or "",
        cipher[0] if cipher else "",
        distinguished_name(certificate["subject"]) if certificate else None,
    )


_NAME_ATTRIBUTES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""OpenSSL's names of attributes → RFC 4514's, section 3; others keep OpenSSL's."""
_ESCAPED = re.compile(r'[,+"\\<>;=]|^[ #]| $')


def distinguished_name(names: Iterable[Iterable[tuple[str, str]]]) -> str:
    """`subject` of `SSLSocket.getpeercert`, outermost name first, as RFC 4514 writes it."""
    return ",".join(
        "+".join(f"{_NAME_ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in relative)
        for relative in reversed(list(names))
    )


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\\" + found[0], value).replace("\0", "\\00")


LOOK_EVERY_S: Final = 1.0
"""Least time between two looks at the PEM files; RocketMQ looks twice a second."""


class LiveContext:
    """A context that follows its PEM files: connections that begin after a file was replaced use the new one,
    as with RocketMQ's servers (`FileWatchService`). Open connections keep what they began with.

    It looks when a connection asks, so there is nothing to start or stop. Files that cannot be used, such as
    a certificate whose key is not replaced yet, are logged, and the last usable ones stay in use. Each look
    tries them again: why they cannot be used may lie outside of them, as with too many open files.
    """

    def __init__(
        self,
        build: Callable[[], ssl.SSLContext],
        paths: Iterable[str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`paths`: the files that `build` reads; empty ones are left out. Raises what `build` raises."""
        self._build = build
        self._paths = [path for path in paths if path]
        self._now_s = now_s
        self._state = self._look()  # before the files are read: a change in between is seen later
        self._context = build()
        self._problem = ""
        """Why the files of the last look cannot be used; empty if they are in use."""
        self._looked_s = now_s()

    def current(self) -> ssl.SSLContext:
        """The context for a connection that begins now."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            state = self._look()
            if state != self._state or self._problem:
                self._state = state
                self._reload()
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_file_state(path) for path in self._paths]

    def _reload(self) -> None:
        try:
            self._context = self._build()
        except ConfigError as error:
            if str(error) != self._problem:
                log.error("TLS files changed and cannot be used, the previous ones stay in use: %s", error)
            self._problem = str(error)
        else:
            self._problem = ""
            log.info("TLS files changed, new connections use them: %s", ", ".join(self._paths))


def _file_state(path: str) -> tuple[int, int, int] | None:
    """Differs after a file was replaced or written; None: there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's TLS: where its contexts come from, and whether plain text is refused."""

    contexts: LiveContext
    enforcing: bool


def server_tls(config: TlsConfig) -> ServerTls | None:
    """What `RemotingServer` needs; None when only plain text is served. Raises `ConfigError`."""
    if config.server_mode == "disabled" or not config.server_cert_path:
        return None
    files = config.server_cert_path, config.server_key_path, config.server_trust_cert_path
    return ServerTls(LiveContext(partial(_server_context, config), files), config.server_mode == "enforcing")


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(
        context, "tls.server", config.server_cert_path, config.server_key_path, config.server_key_password
    )
    if config.server_need_client_auth != "none" and config.server_auth_client:
        _load_trust(context, "tls.server", config.server_trust_cert_path)
        required = config.server_need_client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_tls(config: TlsConfig) -> LiveContext | None:
    """What a server's `RemotingClient` needs; None when it connects in plain text. Raises `ConfigError`."""
    if not config.enable:
        return None
    return LiveContext(partial(_client_context, config), _client_files(config))


def client_context(config: TlsConfig) -> ssl.SSLContext | None:
    """The same for a program that ends soon, such as a command."""
    return _client_context(config) if config.enable else None


def _client_files(config: TlsConfig) -> tuple[str, ...]:
    return config.client_cert_path, config.client_key_path, config.client_trust_cert_path


def _client_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if config.client_auth_server:
        _load_trust(context, "tls.client", config.client_trust_cert_path)
    else:
        context.verify_mode = ssl.CERT_NONE
    if config.client_cert_path:
        _load_chain(
            context, "tls.client", config.client_cert_path, config.client_key_path, config.client_key_password
        )
    return context


def mutual_contexts(config: TlsConfig, wanted_by: str) -> tuple[LiveContext, LiveContext]:
    """Contexts (accepting, connecting) for programs of one kind that must all show a certificate of the same
    origin: `tls.server.*`, and `tls.client.*` where it is set. Host names are not checked, as in RocketMQ.

    Raises `ConfigError`; `wanted_by` is the setting that demands it.
    """
    if not config.server_cert_path or not config.server_trust_cert_path:
        raise ConfigError(
            f"{wanted_by} needs tls.server.certPath, tls.server.keyPath and, to tell peers from strangers, "
            "tls.server.trustCertPath"
        )
    files = config.server_cert_path, config.server_key_path, config.server_trust_cert_path
    return (
        LiveContext(partial(_accepting_context, config), files),
        LiveContext(partial(_connecting_context, config), (*files, *_client_files(config))),
    )


def _accepting_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(
        context, "tls.server", config.server_cert_path, config.server_key_path, config.server_key_password
    )
    _load_trust(context, "tls.server", config.server_trust_cert_path)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _connecting_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    own = ("tls.server", config.server_cert_path, config.server_key_path, config.server_key_password)
    if config.client_cert_path:
        own = ("tls.client", config.client_cert_path, config.client_key_path, config.client_key_password)
    _load_chain(context, *own)
    if config.client_trust_cert_path:
        _load_trust(context, "tls.client", config.client_trust_cert_path)
    else:
        _load_trust(context, "tls.server", config.server_trust_cert_path)
    return context


def _load_chain(context: ssl.SSLContext, prefix: str, cert: str, key: str, password: str) -> None:
    """The key may stand in the certificate's file."""
    try:
        # A function, or OpenSSL would ask on the terminal for the password of an encrypted key.
        context.load_cert_chain(cert, key or None, lambda: password)
    except (OSError, ssl.SSLError) as error:
        given = f"{prefix}.keyPath={key}" if key else f"no {prefix}.keyPath"
        raise ConfigError(f"{prefix}.certPath={cert}, {given}: {error}") from error


def _load_trust(context: ssl.SSLContext, prefix: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{prefix}.trustCertPath={path}: {error}") from error


class TlsSniffer(asyncio.Protocol):
    """Looks at the first byte of a new connection, then hands the transport to the real protocol.

    Owned by the server's set of sniffers from `connection_made` until the hand-over or the end.
    """

    def __init__(
        self,
        tls: ServerTls,
        factory: Callable[[], asyncio.Protocol],
        sniffers: set[TlsSniffer],
        timeout_s: float,
        refused: Callable[[object, str], None],
        no_room: Callable[[asyncio.BaseTransport], str | None] = lambda transport: None,
    ) -> None:
        """`refused` is called with each peer that is kept out, and why. `no_room`: why one more connection
        cannot be kept; None if it can."""
        self._tls = tls
        self._factory = factory
        self._sniffers = sniffers
        self._timeout_s = timeout_s
        self._refused = refused
        self._no_room = no_room
        self._transport: asyncio.Transport | None = None
        self._peer: object = "?"
        self._timer: asyncio.TimerHandle | None = None
        self._upgrade_task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._peer = transport.get_extra_info("peername")
        if (why := self._no_room(transport)) is not None:
            self._refuse(why)
            self._transport.abort()
            return
        self._sniffers.add(self)
        if self._timeout_s:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._upgrade_task is not None:  # decrypted data that came along with the end of the handshake
            self._early.append(data)
        elif data[0] == TLS_HANDSHAKE_RECORD:
            # start_tls pauses too, but not before its first step: until then the rest of a hello that came in
            # pieces would be taken for decrypted data.
            self._transport.pause_reading()
            self._upgrade_task = asyncio.ensure_future(self._upgrade(data))
        elif self._tls.enforcing:
            self._refuse("speaks plain text, and tls.server.mode is enforcing; closing")
            self._transport.close()
        else:
            self._hand_over(self._transport, data)

    def abort(self) -> None:
        """The time to say something is over, or the server stops."""
        if self._upgrade_task is not None:
            self._upgrade_task.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        self._refused(self._peer, why)

    def _done(self) -> None:
        self._sniffers.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        self._done()
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data and not transport.is_closing():  # else it was refused, and so is what it asks for
            protocol.data_received(data)

    async def _upgrade(self, hello: bytes) -> None:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        upgrade = asyncio.ensure_future(
            loop.start_tls(self._transport, self, self._tls.contexts.current(), server_side=True)
        )
        # The hello has been read and must reach the TLS protocol that start_tls puts in place: after that
        # protocol's connection_made, before anything else is read. start_tls queues connection_made and
        # resume_reading in its first step; a callback queued just after that step runs right behind them,
        # with no polling of sockets in between (asyncio and uvloop alike).
        await asyncio.sleep(0)
        loop.call_soon(self._feed, hello)
        try:
            upgraded = await upgrade
        except (OSError, ssl.SSLError) as error:
            self._refuse(f"failed the TLS handshake: {str(error) or type(error).__name__}")
            self._done()
            self._transport = None
            return
        except asyncio.CancelledError:
            self._done()  # asyncio's TLS does not tell its protocol about the end of a handshake
            raise
        finally:
            # The error's traceback holds this frame, and `upgrade` the error: the circle would keep the
            # buffers of each failed handshake (300 KB) until the collector comes by, for which a flood of
            # them does not wait.
            del upgrade
        if upgraded is not None and not upgraded.is_closing():
            self._hand_over(upgraded, b"".join(self._early))

    def _feed(self, hello: bytes) -> None:
        assert self._transport is not None
        protocol = self._transport.get_protocol()
        if isinstance(protocol, TlsSniffer):  # start_tls refused this transport; its error is reported above
            return
        rest = memoryview(hello)
        while rest:
            buffer = protocol.get_buffer(len(rest))  # type: ignore[attr-defined]  # a BufferedProtocol
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            protocol.buffer_updated(size)  # type: ignore[attr-defined]
            rest = rest[size:]
