"""Access of a job to a cluster: TLS and the user, for source, sink and the job's own clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, TypedDict

from batonmq.protocol.signing import Credentials
from batonmq.spark.options import TlsOptions
from batonmq.spark.tls import tls_context


class ClientAccess(TypedDict):
    """Arguments of clients."""

    tls: ssl.SSLContext | None
    credentials: Credentials | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """TLS and the user of a cluster; the defaults are plain text and unsigned requests.

    It is not part of a job's identity in its state directory: certificates and secrets change, and a secret
    must not be stored there.
    """

    tls: TlsOptions | None = None
    credentials: Credentials | None = None
    from_slaves: bool = False
    """Messages are read from slaves, to spare masters."""

    def source_options(self) -> dict[str, str]:
        """Options of a source, secrets among them."""
        return self.options() | ({"readFromSlaves": "true"} if self.from_slaves else {})

    def options(self) -> dict[str, str]:
        """Options of source and sink, secrets among them."""
        found: dict[str, str] = {}
        if self.tls is not None:
            found["tls.enable"] = "true"
            if self.tls.auth_server:
                found["tls.client.authServer"] = "true"
            texts = {
                "tls.client.trustCertPath": self.tls.trust_cert_path,
                "tls.client.certPath": self.tls.cert_path,
                "tls.client.keyPath": self.tls.key_path,
                "tls.client.keyPassword": self.tls.key_password,
            }
            found |= {name: text for name, text in texts.items() if text}
        if self.credentials is not None:
            found["accessKey"] = self.credentials.access_key
            found["secretKey"] = self.credentials.secret_key
            if self.credentials.security_token is not None:
                found["securityToken"] = self.credentials.security_token
        return found

    def client(self) -> ClientAccess:
        """Arguments of a client in this process. Raises `ConfigError` if a file cannot be used."""
        return {"tls": tls_context(self.tls), "credentials": self.credentials}


OPEN: Final = Access()
"""Plain text, unsigned."""
