"""The options of the commands that give rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from batonmq.admin.command import broker_option, cluster_option, names
from batonmq.common.config import did_you_mean

_ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")


def _actions(context: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    """Brokers leave out names that they do not know: a denial would deny less than was meant."""
    given = names(context, option, text)
    for name in given:
        if name.lower() not in map(str.lower, _ACTIONS):
            raise click.BadParameter(f"no action {name!r}{did_you_mean(name, _ACTIONS)}")
    return given


_OPTIONS: Final = (
    broker_option,
    cluster_option,
    click.option("-s", "--subject", required=True, help="Whose rights, User:name."),
    click.option(
        "-r",
        "--resources",
        required=True,
        callback=names,
        help="Topic:name, Group:prefix*, Cluster:*, or *; comma separated.",
    ),
    click.option(
        "-a",
        "--actions",
        required=True,
        callback=_actions,
        help="Pub, Sub, Create, Update, Delete, Get, List or All; comma separated.",
    ),
    click.option(
        "-i", "--sourceIp", "source_ips", callback=names, help="Only from these addresses or networks."
    ),
    click.option("-d", "--decision", required=True, help="Allow or Deny."),
)


def rights_options(work: Callable[..., Any]) -> Callable[..., Any]:
    """Whose rights, to what, from where, and at which brokers."""
    for option in reversed(_OPTIONS):
        work = option(work)
    return work
