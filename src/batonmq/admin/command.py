"""Declares an admin command: an async function of the session, the output and its options.

`command` adds the options that all of them share (`-n`, `--json`, `--timeout`, `--credentials`, `--tls`),
runs the function and turns errors into one line on stderr and exit code 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from batonmq.access.credentials import credentials_option, find_credentials
from batonmq.access.tls import tls_context, tls_options
from batonmq.admin.output import Output
from batonmq.admin.session import TIMEOUT_MS, Admin, AdminError
from batonmq.common.addresses import host_and_port, split_addresses
from batonmq.common.config import ConfigError
from batonmq.common.terminal import visible
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

Work = Callable[..., Awaitable[None]]
F = TypeVar("F", bound=Callable[..., Any])


def addresses(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Refuse what cannot be an address before anything is sent."""
    for address in split_addresses(text or ""):
        try:
            host_and_port(address)
        except ValueError as error:
            raise click.ClickException(f"{address}: {error}") from None
    return text


def names(_: click.Context, __: click.Parameter, text: str | None) -> list[str]:
    """A list with commas between its members."""
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def command(name: str) -> Callable[[Work], click.Command]:
    """Make an async function ``(admin, out, **options)`` the command `name`; its docstring is the help."""

    def declare(work: Work) -> click.Command:
        def run(
            namesrv: str | None,
            as_json: bool,
            timeout_ms: int,
            credentials: Path | None,
            tls: bool,
            tls_config: Path | None,
            tls_trust: Path | None,
            tls_cert: Path | None,
            tls_key: Path | None,
            **options: Any,
        ) -> None:
            try:
                context = tls_context(tls, tls_config, tls_trust, tls_cert, tls_key)
                signer = find_credentials(credentials)
            except ConfigError as error:
                raise click.ClickException(str(error)) from None
            session = Admin(namesrv, timeout_ms, tls=context, credentials=signer)
            asyncio.run(_run(work, session, Output(as_json), options))

        run.__doc__ = work.__doc__
        run.__click_params__ = list(getattr(work, "__click_params__", ()))  # type: ignore[attr-defined]
        for option in _SHARED:
            run = option(run)
        return click.command(name, context_settings={"help_option_names": ["-h", "--help"]})(run)

    return declare


_SHARED = (
    *tls_options,
    credentials_option,
    click.option(
        "--timeout",
        "timeout_ms",
        type=click.IntRange(1, 24 * 60 * 60 * 1000),
        default=TIMEOUT_MS,
        show_default=True,
        help="Timeout of each request, ms.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
    click.option(
        "-n",
        "--namesrvAddr",
        "namesrv",
        envvar="NAMESRV_ADDR",
        callback=addresses,
        help="Name servers, host:port;host:port. [env: NAMESRV_ADDR]",
    ),
)


def not_needed(short: str, long: str, kind: Any = str, help: str = "Not needed here.") -> Callable[[F], F]:
    """An option of mqadmin that changes nothing here; it is accepted for scripts."""
    return click.option(short, long, type=kind, expose_value=False, help=help)


def repeatable(work: Work) -> Work:
    """Adds the option to run a command again and again. Stands directly before its function."""

    @wraps(work)
    async def repeated(admin: Admin, out: Output, *, interval_s: float | None, **options: Any) -> None:
        while True:
            await work(admin, out, **options)
            if interval_s is None:
                return
            await asyncio.sleep(interval_s)

    return click.option(
        "-i",
        "--interval",
        "interval_s",
        type=click.FloatRange(0, min_open=True),
        help="Again and again, with so many seconds between.",
    )(repeated)


broker_option = click.option(
    "-b", "--brokerAddr", "broker", callback=addresses, help="One broker, host:port."
)
cluster_option = click.option("-c", "--clusterName", "cluster", help="All brokers of a cluster.")
masters_option = click.option("-c", "--clusterName", "cluster", help="All masters of a cluster.")


def given_or_typed(_: click.Context, __: click.Parameter, password: str | None) -> str:
    """Callback of a password's option. The question goes to stderr: stdout is for the result."""
    if password:
        return password
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


def typed_if_empty(context: click.Context, option: click.Parameter, password: str | None) -> str | None:
    """The same if the option may be missing."""
    return None if password is None else given_or_typed(context, option, password)


user_option = click.option("-u", "--username", "name", required=True, help="Name of the user.")
user_type_option = click.option(
    "-t",
    "--userType",
    "kind",
    type=click.Choice(["Super", "Normal"], case_sensitive=False),
    help="Its type; default for a new user: Normal.",
)
topic_option = click.option("-t", "--topic", required=True, help="Topic.")
brokers_option = click.option("-b", "--brokers", "brokers", help="Names of brokers, comma separated.")
clusters_option = click.option(
    "-c", "--clusters", "clusters", help="All brokers of these clusters, comma separated."
)
map_file_option = click.option(
    "-mf",
    "--mapFile",
    "map_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Carry out the plan of this file, which an earlier run wrote.",
)
force_option = click.option(
    "-fr",
    "--forceReplace",
    "force",
    type=bool,
    default=False,
    help="Have brokers replace their mapping without checks.",
)
group_option = click.option("-g", "--groupName", "group", required=True, help="Consumer group.")
controller_option = click.option(
    "-a",
    "--controllerAddress",
    "controller",
    required=True,
    callback=addresses,
    help="Controllers, host:port;host:port.",
)
container_option = click.option(
    "-c",
    "--brokerContainerAddr",
    "container",
    required=True,
    callback=addresses,
    help="The broker container, host:port.",
)
id_option = click.option("-i", "--id", "node_id", required=True, help="Id of the controller, e.g. n3.")
raft_option = click.option(
    "-r",
    "--raftAddress",
    "raft",
    required=True,
    callback=addresses,
    help="Where the others reach it, host:port.",
)
rpc_option = click.option(
    "-p",
    "--rpcAddress",
    "rpc",
    default="",
    callback=addresses,
    help="Where brokers reach it, if that is another port (jRaft).",
)
wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Give up after so many seconds.",
)


async def targets(
    admin: Admin, broker: str | None, cluster: str | None, *, slaves: bool = False
) -> list[str]:
    """Addresses that -b or -c mean: one broker, or a cluster's masters (and slaves). Raises `AdminError`.

    One line names the broker sets whose master is gone: what is changed now they do not get.
    """
    if broker:
        return [broker]
    if not cluster:
        raise AdminError("give -b with a broker's host:port or -c with a cluster's name")
    found = await admin.addresses(cluster, slaves=slaves)
    if not slaves and (without := await admin.without_master(cluster)):
        text = f"left out, because no master of them lives: {', '.join(without)}"
        click.echo(visible(text), err=True)
    return found


_UNSIGNED: Final = "username cannot be null."
"""What brokers, RocketMQ's too, answer to a request without credentials."""


async def _run(work: Work, session: Admin, out: Output, options: Any) -> None:
    try:
        async with session as admin:
            await work(admin, out, **options)
    except MQError as error:
        text = f"refused: {error}"
        if error.code == ResponseCode.NO_PERMISSION and error.remark == _UNSIGNED:
            text += " The request is not signed: give --credentials"
        raise click.ClickException(_one_line(text, error)) from None
    except (NetError, AdminError) as error:
        raise click.ClickException(_one_line(str(error), error)) from None
    except UnicodeEncodeError as error:
        raise click.ClickException(f"{error.object!r} is not text that can be sent as UTF-8") from None


def _one_line(text: str, error: Exception) -> str:
    return visible("; ".join((text, *getattr(error, "__notes__", ()))))
