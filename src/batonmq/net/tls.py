"""TLS by RocketMQ's settings (`TlsSystemConfig`): three server modes and PEM files.

RocketMQ reads these keys from Java system properties or the file `tls.config.file`; here they may stand in
the program's own `.conf`. One difference: without a certificate Java's "test mode" invents one that nobody
can verify; we serve plain text then, and refuse `enforcing`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from batonmq.common.config import ConfigError
from batonmq.net.live_context import LiveContext


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


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's TLS: where its contexts come from, and whether plain text is refused."""

    contexts: LiveContext
    enforcing: bool


def server_tls(config: TlsConfig) -> ServerTls | None:
    """What `RemotingServer` needs; None when only plain text is served. Raises `ConfigError`."""
    if config.server_mode == "disabled" or not config.server_cert_path:
        return None
    verify = ssl.CERT_NONE
    if config.server_auth_client and config.server_need_client_auth != "none":
        required = config.server_need_client_auth == "require"
        verify = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    contexts = LiveContext(partial(_server_context, config, verify), _server_files(config))
    return ServerTls(contexts, config.server_mode == "enforcing")


def _server_files(config: TlsConfig) -> tuple[str, ...]:
    return config.server_cert_path, config.server_key_path, config.server_trust_cert_path


def _server_context(config: TlsConfig, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(
        context, "tls.server", config.server_cert_path, config.server_key_path, config.server_key_password
    )
    if verify is not ssl.CERT_NONE:
        _load_trust(context, "tls.server", config.server_trust_cert_path)
        context.verify_mode = verify
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
            f"{wanted_by} needs tls.server.certPath, tls.server.keyPath and, to verify peers, "
            "tls.server.trustCertPath"
        )
    files = _server_files(config)
    return (
        LiveContext(partial(_server_context, config, ssl.CERT_REQUIRED), files),
        LiveContext(partial(_connecting_context, config), (*files, *_client_files(config))),
    )


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
