"""`getBrokerEpoch`, `haStatus` and `getSyncStateSet` are correct, through changes of the master."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from click.testing import CliRunner
from tests.integration.ha.facts import Epochs, MasterLinks, Members, SlaveLink, check_through_switches
from tests.integration.ha.replica_group import ReplicaGroup

from batonmq.admin.main import admin


class OurAdmin:
    """`batonmq admin`."""

    def __init__(self, group: ReplicaGroup) -> None:
        self._cluster = group.cluster

    async def _run(self, *words: str) -> list[dict[str, Any]]:
        given = [*words, "-n", self._cluster.namesrv_address, "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, admin, given)
        assert done.exit_code == 0, f"{words}: {done.output}"
        rows: list[dict[str, Any]] = json.loads(done.output)
        return rows

    async def epochs(self) -> dict[str, Epochs]:
        found: dict[str, Epochs] = {}
        for row in await self._run("getBrokerEpoch", "-b", self._cluster.broker_name):
            entry = row["epoch"], row["startOffset"], row["endOffset"]
            found.setdefault(row["address"], []).append(entry)
        return found

    async def ha_status(self, address: str) -> MasterLinks | SlaveLink:
        first, *others = await self._run("haStatus", "-b", address)
        assert first["broker"] == address
        if first["role"] == "slave of":
            return SlaveLink(first["peer"], first["offset"])
        in_sync = int(first["peer"].split()[0])
        links = [(row["offset"], row["behind"], row["inSync"]) for row in others]
        return MasterLinks(first["offset"], in_sync, links)

    async def members(self) -> Members:
        controllers = ";".join(self._cluster.controller_addresses)
        name = self._cluster.broker_name
        rows = await self._run("getSyncStateSet", "-a", controllers, "-b", name)
        (master,) = [row for row in rows if row["role"] == "master"]
        replicas = {
            in_sync: {row["id"]: (row["address"], row["alive"]) for row in rows if row["inSync"] is in_sync}
            for in_sync in (True, False)
        }
        return Members(
            master["id"], master["address"], master["masterEpoch"], replicas[True], replicas[False]
        )


async def test_what_batonmq_admin_shows_is_correct(group: ReplicaGroup) -> None:
    await check_through_switches(group, OurAdmin(group))
