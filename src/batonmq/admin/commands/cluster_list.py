"""clusterList: clusters, their brokers and what these do right now."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.codes import MASTER_ID
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode


@command("clusterList")
@click.option("-m", "--moreStats", "more", is_flag=True, help="Messages of today and yesterday instead.")
@click.option("-c", "--clusterName", "cluster", help="Only this cluster.")
async def main(admin: Admin, out: Output, more: bool, cluster: str | None) -> None:
    """Show all brokers, their rates and disks.

    Rates are messages a second, `disk` is the used share of the disk. `activated` brokers deliver delayed
    messages, as masters do; a slave is on standby for that.
    """
    rows: list[list[object]] = []
    for group in await admin.groups(cluster):
        for broker_id, address in sorted(group.broker_addrs.items()):
            head: list[object] = [group.cluster, group.broker_name, broker_id, address]
            try:
                answer = await admin.ask(address, wire.GetBrokerRuntimeInfo())
            except (NetError, MQError) as error:
                rows.append([*head, f"unreachable: {error}"] + [""] * (3 if more else 4))
                continue
            figures = decode(bytes(answer.body), KVTable).table
            rows.append([*head, *(_today(figures) if more else _now(figures, broker_id))])
    names = ["cluster", "broker", "id", "address"]
    now = ["version", "inTps", "outTps", "disk", "activated"]
    today = ["inYesterday", "outYesterday", "inToday", "outToday"]
    out.table([*names, *(today if more else now)], rows)


def _now(figures: dict[str, str], broker_id: int) -> list[object]:
    active = figures.get("brokerActive", "")
    if active == "false" and broker_id != MASTER_ID:
        active = "standby"  # a slave's normal state; RocketMQ shows false
    return [
        figures.get("brokerVersionDesc", ""),
        _first(figures.get("putTps", "")),
        _first(figures.get("getTransferredTps", "")),
        _first(figures.get("commitLogDiskRatio", "")),
        active,
    ]


def _today(figures: dict[str, str]) -> list[object]:
    def count(key: str) -> int:
        return int(figures.get(key, "0") or 0)

    counts: list[object] = []
    for begin, end in (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow")):
        for kind in ("msgPutTotal", "msgGetTotal"):
            counts.append(count(kind + end) - count(kind + begin))
    return counts


def _first(text: str) -> float:
    """The first of RocketMQ's figures for several windows."""
    parts = text.split()
    return float(parts[0]) if parts else 0.0
