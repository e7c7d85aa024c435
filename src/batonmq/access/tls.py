"""TLS options of a command line, and the context that they give its connections.

mqadmin reads `-Dtls.enable=true` and the `tls.client.*` keys of its `tls.config.file`; the same file serves
here, and the keys that matter to most have options.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from batonmq.common.config import ConfigError
from batonmq.common.config_loader import load
from batonmq.net.tls import TlsConfig, client_context

CONFIG_VARIABLE: Final = "BATONMQ_TLS_CONFIG"
"""Environment variable that stands for `--tls-config`."""
_PEM: Final = click.Path(path_type=Path)  # that it can be read is for the context to say, with the key

tls_options: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option("--tls-key", type=_PEM, help="Private key of --tls-cert, PEM, if it is in another file."),
    click.option("--tls-cert", type=_PEM, help="Certificate to show to servers that ask for one, PEM."),
    click.option(
        "--tls-trust", type=_PEM, help="Trust only servers with a certificate of these authorities, PEM."
    ),
    click.option(
        "--tls-config",
        type=click.Path(path_type=Path),
        envvar=CONFIG_VARIABLE,
        help=f"File with tls.client.* keys, e.g. mqadmin's tls.config.file. [env: {CONFIG_VARIABLE}]",
    ),
    click.option("--tls", is_flag=True, help="Use TLS; each of the next four options implies it."),
)
"""The last is shown first, as decorators are."""


def tls_settings(
    tls: bool, tls_config: Path | None, tls_trust: Path | None, tls_cert: Path | None, tls_key: Path | None
) -> TlsConfig | None:
    """What the options ask for, None for plain text; they win over the file's keys. Raises `ConfigError`."""
    paths = {
        "tls.client.trustCertPath": tls_trust,
        "tls.client.certPath": tls_cert,
        "tls.client.keyPath": tls_key,
    }
    given = {key: str(path) for key, path in paths.items() if path is not None}
    if not (tls or given or tls_config is not None):
        return None
    if tls_trust is not None:
        given["tls.client.authServer"] = "true"
    # As with mqadmin, that TLS is wanted is not for the file to say.
    (config,) = load(tls_config, TlsConfig, overrides={**given, "tls.enable": "true"})
    if config.client_key_path and not config.client_cert_path:
        raise ConfigError(
            f"tls.client.keyPath={config.client_key_path}: a key is of no use without its certificate, "
            "--tls-cert or tls.client.certPath"
        )
    return config


def tls_context(
    tls: bool, tls_config: Path | None, tls_trust: Path | None, tls_cert: Path | None, tls_key: Path | None
) -> ssl.SSLContext | None:
    """`tls_settings` with the certificates loaded. Raises `ConfigError`."""
    settings = tls_settings(tls, tls_config, tls_trust, tls_cert, tls_key)
    return None if settings is None else client_context(settings)
