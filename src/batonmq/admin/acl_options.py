"""The options of the commands that give rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from batonmq.admin.command import broker_option, cluster_option, names

_OPTIONS: Final = (
    broker_option,
    cluster_option,
    click.option("-s", "--subject", required=True, help="Whose rights, User:name."),
    click.option(
        "-r",
        "--resources",
        required=True,
        callback=names,
        help="Topic:name, Group:prefix*, Cluster:*, or *; a comma between several.",
    ),
    click.option(
        "-a",
        "--actions",
        required=True,
        callback=names,
        help="Pub, Sub, Create, Update, Delete, Get, List or All; a comma between several.",
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
