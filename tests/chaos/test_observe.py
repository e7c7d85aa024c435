"""When groups without controllers count as whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.demo.cluster import Place
from batonmq.net.errors import ConnectFailed
from batonmq.protocol.bodies.replication import HAConnectionRuntimeInfo, HARuntimeInfo
from batonmq.protocol.bodies.routes import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup
from batonmq.protocol.json import encode
from tests.chaos.cluster import host_names
from tests.chaos.fixed import FixedGroups
from tests.chaos.observe import LEVEL_BYTES, FixedObserver


class Answers:
    """What name servers and masters say, in the place of the observer's client."""

    def __init__(self, cluster: FixedGroups) -> None:
        self.members = {
            (namesrv.address, name): {each.broker_id: each.address for each in pair}
            for namesrv in cluster.namesrvs
            for name, pair in cluster.sets.items()
        }
        follows = HAConnectionRuntimeInfo(in_sync=True, diff=0)
        self.links = {pair[0].address: [follows] for pair in cluster.sets.values()}
        self.master = True
        self.silent: set[str] = set()

    async def call(self, address: str, header: Any, *, timeout_ms: float) -> Any:
        if address in self.silent:
            raise ConnectFailed(address, "refused")
        if isinstance(header, GetBrokerMemberGroup):
            group = BrokerMemberGroup(broker_addrs=self.members[address, header.broker_name])
            return SimpleNamespace(body=encode(GetBrokerMemberGroupResponseBody(broker_member_group=group)))
        info = HARuntimeInfo(master=self.master, ha_connection_info=self.links[address])
        return SimpleNamespace(body=encode(info))


@pytest.fixture
def cluster(tmp_path: Path) -> FixedGroups:
    hosts = {name: f"10.67.0.{number}" for number, name in enumerate(host_names(2, "containers"), 1)}
    return FixedGroups("containers", tmp_path, lambda name: Place(hosts[name]), {})


async def whole(cluster: FixedGroups, answers: Answers) -> bool:
    observer = FixedObserver(cluster)
    await observer._client.close()
    observer._client = answers  # type: ignore[assignment]
    found = await observer._is_whole()
    assert found is not bool(observer.state), "what is missing is named"
    return found


async def test_everything_is_there(cluster: FixedGroups) -> None:
    assert await whole(cluster, Answers(cluster))


async def test_one_name_server_that_lacks_a_member_is_enough(cluster: FixedGroups) -> None:
    answers = Answers(cluster)
    del answers.members[cluster.namesrvs[1].address, "broker-b"][1]
    assert not await whole(cluster, answers)


async def test_a_name_server_or_master_that_does_not_answer(cluster: FixedGroups) -> None:
    for address in (cluster.namesrvs[0].address, cluster.sets["broker-a"][0].address):
        answers = Answers(cluster)
        answers.silent.add(address)
        assert not await whole(cluster, answers)


@pytest.mark.parametrize(
    "links",
    [
        [],
        [HAConnectionRuntimeInfo(in_sync=False, diff=0)],
        [HAConnectionRuntimeInfo(in_sync=True, diff=LEVEL_BYTES)],
    ],
)
async def test_a_master_without_a_slave_that_follows(
    cluster: FixedGroups, links: list[HAConnectionRuntimeInfo]
) -> None:
    answers = Answers(cluster)
    answers.links[cluster.sets["broker-b"][0].address] = links
    assert not await whole(cluster, answers)


async def test_who_is_struck(cluster: FixedGroups) -> None:
    observer = FixedObserver(cluster)
    try:
        assert observer.master == "node-0"
        await observer.leader()
    finally:
        await observer._client.close()
