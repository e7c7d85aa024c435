"""What mqadmin shows of our replica group is so, through changes of the master."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ha.facts import Epochs, MasterLinks, Members, SlaveLink, check_through_switches
from tests.integration.ha.replica_group import ReplicaGroup

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]


class MQAdmin:
    """RocketMQ's mqadmin, and what it prints."""

    def __init__(self, peer: Any, group: ReplicaGroup) -> None:
        self._peer = peer
        self._cluster = group.cluster

    async def _run(self, *words: str) -> str:
        output: str = await self._peer.admin(*words, "-n", self._cluster.namesrv_address)
        assert "Exception" not in output, f"{words}: {output[-3000:]}"
        return output

    async def epochs(self) -> dict[str, Epochs]:
        found: dict[str, Epochs] = {}
        output = await self._run("getBrokerEpoch", "-b", self._cluster.broker_name)
        for part in output.split("#brokerAddr")[1:]:
            entries = re.findall(r"EpochEntry\{epoch=(\d+), startOffset=(\d+), endOffset=(\d+)\}", part)
            found[part.split()[0]] = [(int(e), int(start), int(end)) for e, start, end in entries]
        return found

    async def ha_status(self, address: str) -> MasterLinks | SlaveLink:
        output = await self._run("haStatus", "-b", address)
        facts = dict(re.findall(r"^#(\w+)\t(\S+)$", output, re.M))
        if "MasterCommitLogMaxOffset" not in facts:
            return SlaveLink(facts["MasterAddr"], int(facts["CommitLogMaxOffset"]))
        assert facts["MasterAddr"] == address
        links = re.findall(r"^127\.0\.0\.1:\d+ +(\d+) +(\d+) +[\d.]+ +(OK|Fall Behind) +\d+$", output, re.M)
        assert len(links) == int(facts["SlaveNum"])
        return MasterLinks(
            int(facts["MasterCommitLogMaxOffset"]),
            int(facts["InSyncSlaveNum"]),
            [(int(ack), int(behind), status == "OK") for ack, behind, status in links],
        )

    async def members(self) -> Members:
        controller, name = self._cluster.controller_addresses[0], self._cluster.broker_name
        output = await self._run("getSyncStateSet", "-a", controller, "-b", name)
        facts = dict(re.findall(r"^#(\w+)\t(\S+)$", output, re.M))

        def replicas(kind: str) -> dict[int, tuple[str, bool]]:
            found = re.findall(
                rf"^{kind}:\tReplicaIdentity\{{.*brokerId=(\d+), brokerAddress='(\S+)', alive=(\w+)\}}",
                output,
                re.M,
            )
            return {int(number): (address, alive == "true") for number, address, alive in found}

        members = Members(
            int(facts["MasterBrokerId"]),
            facts["MasterAddr"],
            int(facts["MasterEpoch"]),
            replicas("InSyncReplica"),
            replicas("NotInSyncReplica"),
        )
        assert len(members.in_sync) == int(facts["SyncStateSetNums"])
        return members


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path / "group", replicas=2)
    await made.up()
    yield made
    await made.close()


async def test_what_mqadmin_shows_is_so(peer: Any, group: ReplicaGroup) -> None:
    await check_through_switches(group, MQAdmin(peer, group))
