"""When a slave tries its master again."""

import asyncio

import pytest

from batonmq.ha import follower as module
from batonmq.ha.config import HAConfig
from batonmq.ha.follower import Follower


class Link:
    """A link that ends at once."""

    following, reason, peer, local_address = False, "refused", "m:1", ""

    def __init__(self, untrusted):
        self.untrusted = untrusted
        self.ended = asyncio.get_running_loop().create_future()
        self.ended.set_result(None)


async def attempts(monkeypatch, *, untrusted, hastened):
    """How often a slave connects in a pause of 30 s while its master announces itself."""
    monkeypatch.setattr(module, "RECONNECT_S", (30.0, 30.0))
    dialled = []

    def new_link(slave, address):
        dialled.append(address)
        return Link(untrusted)

    async def connected(*args, **kwargs):
        return None

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connected, raising=False)
    store, observer = type("Store", (), {"max_offset": 0})(), type("Observer", (), {"on_progress": None})()
    flusher = type("Flusher", (), {"observer": None})()
    slave = Follower(store, HAConfig(), type("Security", (), {"client": None})(), flusher, observer, new_link)
    slave.start("127.0.0.1:1")
    for _ in range(3):
        await asyncio.sleep(0.02)
        if hastened:
            slave.hasten()
    await asyncio.sleep(0.02)
    await slave.leave()
    return len(dialled)


async def test_it_pauses(monkeypatch):
    assert await attempts(monkeypatch, untrusted=False, hastened=False) == 1


async def test_an_announcement_ends_the_pause(monkeypatch):
    assert await attempts(monkeypatch, untrusted=False, hastened=True) == 4


async def test_an_announcement_changes_nothing_after_a_refusal_that_will_come_again(monkeypatch):
    assert await attempts(monkeypatch, untrusted=True, hastened=True) == 1


@pytest.mark.parametrize("address", ["master", "master:", ":10912", "master:70000", "[::1]"])
async def test_an_address_that_is_none_is_named_and_the_next_one_followed(replicas, caplog, address):
    """A name server or a master may give any text as an address."""
    master, slave = await replicas(2)
    master.ha.serve()
    slave.ha.follow(address)
    await asyncio.sleep(0.05)
    slave.ha.set_master_address(master.address)
    async with asyncio.timeout(5):
        while not slave.ha.following:
            await asyncio.sleep(0.01)
    assert f"cannot connect to master {address}: not an address of the form host:port" in caplog.text
