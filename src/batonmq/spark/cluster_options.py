"""Options of the commands that reach a cluster: its name servers, TLS and credentials, as of `batonmq admin`.

`cluster_options` is for the cluster of `-n`, `target_options` for a second one, that of `--to-namesrv`. No
option takes a secret: it comes from a file or the environment, so that no command line shows it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from batonmq.access.credentials import credentials_option, find_credentials
from batonmq.access.tls import tls_options, tls_settings
from batonmq.common.addresses import name_server_addresses
from batonmq.common.config import ConfigError
from batonmq.spark.access import OPEN, Access
from batonmq.spark.options import TlsOptions

Work = Callable[..., None]

_TLS: Final = ("tls", "tls_config", "tls_trust", "tls_cert", "tls_key")
"""Names of the options' values, as arguments of `tls_settings`."""


def name_servers(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Refuse what cannot be an address before Spark starts."""
    try:
        if text is not None:
            name_server_addresses(text)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return text


def cluster_options(unless: Mapping[str, str] | None = None, *, reads: bool = True) -> Callable[[Work], Work]:
    """Add the options; the command gets `namesrv` and `access`.

    `reads`: the command reads messages there.

    `unless`: parameters, and their options, that name something else to read. With one of them the job does
    not reach the cluster: `namesrv` is None then, wherever it was given.
    """
    instead = unless or {}

    def declare(work: Work) -> Work:
        @functools.wraps(work)
        def run(
            *, namesrv: str | None, credentials: Path | None, read_from_slaves: bool = False, **options: Any
        ) -> None:
            tls = {name: options.pop(name) for name in _TLS}
            if any(options[name] for name in instead):
                work(namesrv=None, access=OPEN, **options)
                return
            if namesrv is None:
                others = f", or give {' or '.join(instead.values())}" if instead else ""
                raise click.UsageError(f"no name server: give -n host:port or set NAMESRV_ADDR{others}")
            access = replace(_access(credentials, tls, os.environ), from_slaves=read_from_slaves)
            work(namesrv=namesrv, access=access, **options)

        decorated: Work = run
        for option in (*((_FROM_SLAVES,) if reads else ()), *_CLUSTER):
            decorated = option(decorated)
        return decorated

    return declare


_FROM_SLAVES: Final = click.option(
    "--read-from-slaves", is_flag=True, help="Spare masters; brokers need slaveReadEnable=true."
)
_CLUSTER: Final = (
    *tls_options,
    credentials_option,
    click.option(
        "-n",
        "--namesrv",
        "--namesrvAddr",
        "namesrv",
        envvar="NAMESRV_ADDR",
        callback=name_servers,
        help="Name servers, host:port;host:port. [env: NAMESRV_ADDR]",
    ),
)
"""The last is shown first, as decorators are."""


def target_options(*, required: bool) -> Callable[[Work], Work]:
    """Add the options of a second cluster; the command gets `to_namesrv` and `to_access`.

    The environment names the first cluster only, and so do its options: a user's name and certificate are
    not shown to another cluster unless that was asked for.
    """
    text = "Name servers of the target." if required else "Name servers of another cluster to write to."
    addresses = click.option("--to-namesrv", required=required, callback=name_servers, help=text)

    def declare(work: Work) -> Work:
        @functools.wraps(work)
        def run(*, to_namesrv: str | None, to_credentials: Path | None, **options: Any) -> None:
            tls = {name: options.pop(f"to_{name}") for name in _TLS}
            if to_namesrv is None and (to_credentials is not None or any(tls.values())):
                raise click.UsageError("--to-credentials and --to-tls… are for the cluster of --to-namesrv")
            work(to_namesrv=to_namesrv, to_access=_access(to_credentials, tls, {}), **options)

        decorated: Work = run
        for option in (*_TARGET, addresses):
            decorated = option(decorated)
        return decorated

    return declare


_FILE: Final = click.Path(path_type=Path)
_TARGET: Final = (
    *(
        click.option(f"--to-{name}", type=_FILE, help=f"As --{name}, for the target.")
        for name in ("tls-key", "tls-cert", "tls-trust", "tls-config")
    ),
    click.option(
        "--to-tls", is_flag=True, help="Use TLS for the target; each of the next four options implies it."
    ),
    click.option(
        "--to-credentials",
        type=_FILE,
        help="File with accessKey and secretKey for the target; without it, no request is signed.",
    ),
)


def _access(credentials: Path | None, tls: Mapping[str, Any], environment: Mapping[str, str]) -> Access:
    """`environment`: where credentials may be that no option names."""
    try:
        config = tls_settings(**tls)
        signer = find_credentials(credentials, environment)
        if config is None:
            return Access(credentials=signer)
        paths = (config.client_trust_cert_path, config.client_cert_path, config.client_key_path)
        # Python workers of executors run in other directories.
        trust, certificate, key = (str(Path(path).absolute()) if path else "" for path in paths)
        options = TlsOptions(
            auth_server=config.client_auth_server,
            trust_cert_path=trust,
            cert_path=certificate,
            key_path=key,
            key_password=config.client_key_password,
        )
        access = Access(tls=options, credentials=signer)
        access.client()  # a file that cannot be used shows here, not after Spark has started
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    return access
