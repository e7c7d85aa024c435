"""TLS of source and sink: from their options to a context of this process."""

from __future__ import annotations

import ssl

from batonmq.net.tls import TlsConfig, client_context
from batonmq.spark.options import TlsOptions


def tls_context(options: TlsOptions | None) -> ssl.SSLContext | None:
    """None is plain text. Raises `ConfigError`, where a file is missing on this machine or is not right."""
    if options is None:
        return None
    return client_context(
        TlsConfig(
            enable=True,
            client_auth_server=options.auth_server,
            client_trust_cert_path=options.trust_cert_path,
            client_cert_path=options.cert_path,
            client_key_path=options.key_path,
            client_key_password=options.key_password,
        )
    )
