"""`batonmq admin` on a master that waits for a slave and has none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from batonmq.admin.main import admin

from .group import NAME, ClassicGroup


async def test_a_send_shows_that_the_slaves_did_not_follow_unless_timeout_is_shorter(tmp_path: Path) -> None:
    """`slaveTimeout` is 3 s. The send gave up after 3 s whatever --timeout was, and did not say why."""
    group = ClassicGroup(tmp_path, slaves=0, master_settings={"inSyncReplicas": 2, "totalReplicas": 2})

    async def run(*words: str) -> str:
        arguments = [words[0], "-n", group.namesrv.address, *words[1:]]
        return (await asyncio.to_thread(CliRunner().invoke, admin, arguments)).output

    try:
        await group.up()
        await run("updateTopic", "-c", "DefaultCluster", "-t", "orders", "-w", "1", "-r", "1")
        assert "stored at orders@classic:0 offset 0, but FLUSH_SLAVE_TIMEOUT" in await run(
            "sendMessage", "-t", "orders", "-p", "x"
        )
        refused = await run("sendMessage", "-t", "orders", "-p", "x", "--timeout", "1000")
        assert "no answer in time; the message may have been stored" in refused
        (sent,) = json.loads(await run("sendMsgStatus", "-b", NAME, "-c", "1", "--json"))
        assert sent["result"].endswith("but FLUSH_SLAVE_TIMEOUT")
        (master,) = json.loads(await run("haStatus", "-b", group.master.address, "--json"))
        assert master["peer"] == "0 of 1 slaves in sync"
    finally:
        await group.close()
