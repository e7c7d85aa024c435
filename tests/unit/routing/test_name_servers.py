"""Asking name servers: the next one when one does not answer, and what is said when none does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batonmq.net.errors import ConnectFailed
from batonmq.protocol.errors import TopicNotExistError
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.routing.name_servers import NameServers, NoNameServer

ADDRESSES = ["a:1", "b:1", "c:1"]


class Network:
    """Name servers that answer with their address, unless they are down or refuse."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.refusal: Exception | None = None
        self.asked: list[str] = []

    async def call(self, address: str, *_: object, **__: object) -> Any:
        self.asked.append(address)
        if address in self.down:
            raise ConnectFailed(address, "connection refused")
        if self.refusal is not None:
            raise self.refusal
        return address


def name_servers(network: Network) -> NameServers:
    return NameServers(ADDRESSES, network, random.Random(1))  # type: ignore[arg-type]


async def test_the_one_that_answered_is_asked_first_the_next_time() -> None:
    network = Network()
    servers = name_servers(network)
    first = await servers.ask(GetRouteInfo("t"))
    network.down = {str(first)}
    second = await servers.ask(GetRouteInfo("t"))
    assert second != first
    network.asked.clear()
    network.down = set()
    assert await servers.ask(GetRouteInfo("t")) == second and network.asked == [second]


async def test_when_none_answers_each_of_them_is_named() -> None:
    network = Network()
    network.down = set(ADDRESSES)
    with pytest.raises(NoNameServer) as caught:
        await name_servers(network).ask(GetRouteInfo("t"))
    assert sorted(network.asked) == ADDRESSES
    assert all(f"{address}: connection refused" in str(caught.value) for address in ADDRESSES)
    assert not caught.value.sent


async def test_an_answer_that_refuses_is_an_answer() -> None:
    network = Network()
    network.refusal = TopicNotExistError(17, "no such topic")
    with pytest.raises(TopicNotExistError):
        await name_servers(network).ask(GetRouteInfo("t"))
    assert len(network.asked) == 1
