"""Brokers: their state, figures and configuration, and the cleaning of their disks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from batonmq.admin.session import Admin, AdminError, one_key
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.codes import MASTER_ID
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode

Day = Literal["yesterday", "today"]
_SPANS: Mapping[Day, tuple[str, str]] = {
    "yesterday": ("YesterdayMorning", "TodayMorning"),
    "today": ("TodayMorning", "TodayNow"),
}
"""Between which two of a broker's counters a day lies."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker that the name server knows, and its figures."""

    cluster: str
    name: str
    broker_id: int
    """As in the route: 0 is the master."""
    address: str
    figures: Mapping[str, str] = field(default_factory=dict)
    """RocketMQ's runtime figures by their names (`BrokerRuntimeInfo`); empty if it did not answer."""
    error: str | None = None
    """Why it did not answer."""

    @property
    def version(self) -> str:
        return self.figures.get("brokerVersionDesc", "")

    @property
    def in_tps(self) -> float:
        return _first(self.figures.get("putTps", ""))

    @property
    def out_tps(self) -> float:
        return _first(self.figures.get("getTransferredTps", ""))

    @property
    def disk_ratio(self) -> float:
        """Used share of the commit log's disk, 0 to 1."""
        return _first(self.figures.get("commitLogDiskRatio", ""))

    @property
    def activated(self) -> str:
        """Whether it delivers delayed messages: true, false or standby."""
        active = self.figures.get("brokerActive", "")
        if active == "false" and self.broker_id != MASTER_ID:
            return "standby"  # a slave's normal state; RocketMQ shows false
        return active

    def messages_in(self, day: Day) -> int:
        """Messages stored on that day."""
        return self._counted("msgPutTotal", day)

    def messages_out(self, day: Day) -> int:
        """Messages given to consumers on that day."""
        return self._counted("msgGetTotal", day)

    def _counted(self, counter: str, day: Day) -> int:
        begin, end = _SPANS[day]
        return self._count(counter + end) - self._count(counter + begin)

    def _count(self, key: str) -> int:
        return int(self.figures.get(key, "0") or 0)


async def states(admin: Admin, cluster: str | None = None) -> list[BrokerState]:
    """All brokers of a cluster, or of all; one that does not answer has an `error`."""
    found: list[BrokerState] = []
    for group in await admin.groups(cluster):
        for broker_id, address in sorted(group.broker_addrs.items()):
            table: dict[str, str] = {}
            error: str | None = None
            try:
                answer = await admin.ask(address, wire.GetBrokerRuntimeInfo())
            except (NetError, MQError) as refusal:
                error = str(refusal)
            else:
                table = decode(bytes(answer.body), KVTable).table
            found.append(BrokerState(group.cluster, group.broker_name, broker_id, address, table, error))
    return found


async def figures(admin: Admin, addresses: Iterable[str]) -> dict[str, dict[str, str]]:
    """Broker address -> name of a figure -> its value."""
    found: dict[str, dict[str, str]] = {}
    for address in addresses:
        answer = await admin.ask(address, wire.GetBrokerRuntimeInfo())
        found[address] = decode(bytes(answer.body), KVTable).table
    return found


async def configs(admin: Admin, addresses: Iterable[str]) -> dict[str, dict[str, str]]:
    """Broker address -> configuration key -> value."""
    return await admin.configs(addresses, wire.GetBrokerConfig())


async def other_replicas(admin: Admin, address: str) -> list[str] | None:
    """Live replicas of the same broker set, by the name server; None if it does not list this address."""
    for group in await admin.groups():
        members = set(group.broker_addrs.values())
        if address in members:
            return sorted(members - {address})
    return None


async def name_of(admin: Admin, address: str) -> str:
    """The broker name of a live broker. Raises `AdminError` if the name server does not list the address."""
    for group in await admin.groups():
        if address in group.broker_addrs.values():
            return group.broker_name
    raise AdminError(f"the name server does not know {address}")


async def change_config(admin: Admin, addresses: Iterable[str], key: str, value: str) -> None:
    """Set a key of running brokers, and in their files. The first refusal ends it."""
    await admin.ask_each(addresses, wire.UpdateBrokerConfig(), one_key(key, value))


async def delete_expired_commit_logs(admin: Admin, addresses: Iterable[str]) -> None:
    """Delete expired commit log files now, not at the hour of `deleteWhen`."""
    await admin.ask_each(addresses, wire.DeleteExpiredCommitLog())


async def clean_expired_queues(admin: Admin, addresses: Iterable[str]) -> None:
    """Delete the consume queue files whose messages are no longer in the commit log."""
    await admin.ask_each(addresses, wire.CleanExpiredConsumeQueue())


async def clean_unused_topics(admin: Admin, addresses: Iterable[str]) -> None:
    """Delete the consume queues of topics that no longer exist."""
    await admin.ask_each(addresses, wire.CleanUnusedTopic())


def _first(text: str) -> float:
    """The first of the values that RocketMQ gives for several time windows, blanks between."""
    parts = text.split()
    return float(parts[0]) if parts else 0.0
