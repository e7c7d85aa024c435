"""Hosts in network namespaces on one switch; the switch drops packets between pairs of hosts.

The switch is a bridge in our own namespace, where the clients live too. What passes it is decided by one
nftables table in the bridge family. netem is not used: it works on an interface, not on a pair of hosts, and
many kernels are built without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from batonmq.demo.cluster import Place
from tests.chaos.isolate import CannotIsolate, run

CLIENTS = "clients"
"""The host of producers, consumers and the observer: the switch itself."""
_NET = "10.67.0"
_BRIDGE = "switch"

Link = frozenset[str]
"""The two hosts of a link."""


def links(first: Iterable[str], second: Iterable[str]) -> frozenset[Link]:
    """All links between the hosts of two sets, which may overlap."""
    return frozenset(frozenset((a, b)) for a in first for b in second if a != b)


def links_among(hosts: Iterable[str]) -> frozenset[Link]:
    """All links within a set of hosts."""
    return frozenset(frozenset(pair) for pair in combinations(hosts, 2))


class Network:
    """The hosts and the switch; `open` makes them. They go when the program goes."""

    def __init__(self, hosts: Sequence[str]) -> None:
        if not 0 < len(hosts) < 250:
            raise ValueError(f"1 to 249 hosts, not {len(hosts)}")
        self.hosts = tuple(hosts)
        self._addresses = {name: f"{_NET}.{number}" for number, name in enumerate(hosts, 1)}
        self._addresses[CLIENTS] = f"{_NET}.254"

    def address(self, host: str) -> str:
        return self._addresses[host]

    def place(self, host: str) -> Place:
        """Where the cluster's program of this name runs."""
        return Place(self._addresses[host], ("nsenter", f"--net=/run/netns/{host}"))

    def open(self) -> None:
        """Make switch and hosts. Raises `CannotIsolate`."""
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{self._addresses[CLIENTS]}/24", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        for number, host in enumerate(self.hosts, 1):
            port = f"port{number}"
            run("ip", "netns", "add", host)
            run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            run("ip", "link", "set", port, "master", _BRIDGE, "up")
            run("ip", "-n", host, "address", "add", f"{self._addresses[host]}/24", "dev", "eth0")
            run("ip", "-n", host, "link", "set", "eth0", "up")
            run("ip", "-n", host, "link", "set", "lo", "up")
        self.apply(frozenset(), {})

    def close(self) -> None:
        """Take hosts and switch away, so that another network can be opened."""
        for number, host in enumerate(self.hosts, 1):
            run("ip", "link", "delete", f"port{number}")  # a namespace's own links go only some time after it
            run("ip", "netns", "delete", host)
        run("ip", "link", "delete", _BRIDGE)

    def apply(self, cut: frozenset[Link], loss: Mapping[Link, int]) -> None:
        """From now on `cut` links pass nothing and the others in `loss` drop that many percent; one step.

        Raises `CannotIsolate` where the kernel lacks what is needed.
        """
        try:
            run("nft", "-f", "-", stdin=self.rules(cut, loss))
        except CannotIsolate as error:
            raise CannotIsolate(
                f"{error}\nThe kernel must have nftables for bridges (CONFIG_NF_TABLES_BRIDGE) and random "
                f"numbers (CONFIG_NFT_NUMGEN)."
            ) from None

    def rules(self, cut: frozenset[Link], loss: Mapping[Link, int]) -> str:
        """The whole table as nftables text; replaces the former one in one transaction."""
        drops = [f"    {self._pairs(cut)} drop"] if cut else []
        for percent in sorted(set(loss.values())):
            pairs = self._pairs(link for link, value in loss.items() if value == percent)
            drops.append(f"    {pairs} numgen random mod 100 < {percent} drop")
        return "\n".join(
            [
                "add table bridge chaos",
                "delete table bridge chaos",
                "table bridge chaos {",
                "  chain pass {",
                *drops,
                "  }",
                *(
                    f"  chain {hook} {{ type filter hook {hook} priority 0; jump pass; }}"
                    for hook in ("forward", "input", "output")
                ),
                "}\n",
            ]
        )

    def _pairs(self, chosen: Iterable[Link]) -> str:
        """A match of all packets on these links, both ways. Addresses only: ARP passes."""
        both = sorted(
            f"{self._addresses[a]} . {self._addresses[b]}"
            for link in chosen
            for a, b in (sorted(link), sorted(link, reverse=True))
        )
        return f"ip saddr . ip daddr {{ {', '.join(both)} }}"
