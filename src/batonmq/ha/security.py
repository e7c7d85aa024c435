"""The security of replication links, from the keys of a configuration.

TLS and the shared secret exist in BatonMQ only: RocketMQ's replication port speaks plain text to any peer.
Both are off unless configured; with either of them a group consists of BatonMQ's brokers only.
"""

from __future__ import annotations

from dataclasses import dataclass

from batonmq.ha.config import HAConfig
from batonmq.ha.proof import key_of
from batonmq.net.live_context import LiveContext
from batonmq.net.tls import TlsConfig, mutual_contexts


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """What both ends of a link demand. With nothing set, any peer that reaches the port may take part."""

    server: LiveContext | None = None
    client: LiveContext | None = None
    key: bytes | None = None

    def __str__(self) -> str:
        parts = [
            *(["TLS with certificates on both sides"] if self.server else []),
            *(["shared secret"] if self.key else []),
        ]
        return " and ".join(parts) or "open to everybody who reaches it"


def security_of(config: HAConfig, tls: TlsConfig) -> LinkSecurity:
    """Raises `ConfigError` when a key is missing or a file cannot be used."""
    server: LiveContext | None = None
    client: LiveContext | None = None
    if config.ha_tls_enable:
        server, client = mutual_contexts(tls, "haTlsEnable=true")
    return LinkSecurity(server, client, key_of(config.ha_secret) if config.ha_secret else None)
