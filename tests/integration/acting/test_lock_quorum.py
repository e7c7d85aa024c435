"""Strict queue locks of three brokers, one of which is killed and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.acting.group import TOPIC, Pairs, until

from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.headers.broker.clients import LockBatchMq, UnlockBatchMq
from batonmq.protocol.json import decode, encode

QUEUES = [MessageQueue(TOPIC, "a", number) for number in range(2)]


async def lock(pairs: Pairs, broker_id: int, client_id: str) -> list[int]:
    body = encode(LockBatchRequestBody("orderly", client_id, False, QUEUES))
    answer = await pairs.client.call(pairs.address("a", broker_id), LockBatchMq(), body)
    return sorted(queue.queue_id for queue in decode(answer.body, LockBatchResponseBody).lock_ok_mq_set)


async def unlock(pairs: Pairs, broker_id: int, client_id: str) -> None:
    body = encode(UnlockBatchRequestBody("orderly", client_id, False, QUEUES))
    await pairs.client.call(pairs.address("a", broker_id), UnlockBatchMq(), body)


async def test_a_lock_has_one_owner_through_the_loss_and_the_return_of_the_master(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, {"lockInStrictMode": "true"}, sets="a", slaves=2)
    try:
        await pairs.up()
        await until(lambda: _granted(pairs, 0, "c1"), "all members are known")
        for broker_id in range(3):
            assert await lock(pairs, broker_id, "c2") == []
        pairs.kill("a", 0)
        for _ in range(20):  # before, while and after the slave begins to act
            for broker_id in (1, 2):
                assert await lock(pairs, broker_id, "c2") == []
            await asyncio.sleep(0.05)
        await pairs.acting("a")
        await until(lambda: _granted(pairs, 1, "c1"), "its owner has it still")
        await unlock(pairs, 1, "c1")
        await until(lambda: _granted(pairs, 1, "c2"), "another client gets it")
        await pairs.restart("a", 0)
        await pairs.acting("a", ends=True)
        await pairs.whole("a")
        # The master knows nothing of that lock, but the slaves do.
        for broker_id in range(3):
            assert await lock(pairs, broker_id, "c1") == []
        await until(lambda: _granted(pairs, 0, "c2"), "its owner has it at the master, too")
    finally:
        await pairs.close()
    assert "Traceback" not in pairs.logs()


async def _granted(pairs: Pairs, broker_id: int, client_id: str) -> bool:
    """Asks as clients do, again and again: a replica whose disk is slow has 1 s to grant."""
    try:
        return await lock(pairs, broker_id, client_id) == [0, 1]
    except NetError:
        return False


async def test_votes_outlive_a_restart_and_a_lost_majority_grants_nothing(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, {"lockInStrictMode": "true"}, sets="a", slaves=2)
    try:
        await pairs.up()
        pairs.kill("a", 2)
        await until(lambda: _granted(pairs, 0, "c1"), "the other two grant")
        # The master is gone too, and its vote with it; slave 1, which voted, restarts.
        pairs.kill("a", 0)
        pairs.kill("a", 1)
        await pairs.restart("a", 1)
        await until(lambda: _registered(pairs, {1}), "slave 1 is there again")
        assert await lock(pairs, 1, "c1") == [], "one of three is not a majority"
        await pairs.restart("a", 2)
        await until(lambda: _registered(pairs, {1, 2}), "slave 2 is there again")
        for broker_id in (1, 2):
            assert await lock(pairs, broker_id, "c2") == []
        await until(lambda: _granted(pairs, 1, "c1"), "its owner keeps the lock")
    finally:
        await pairs.close()


async def _registered(pairs: Pairs, ids: set[int]) -> bool:
    return set(await pairs.members("a")) == ids


async def test_of_two_replicas_both_must_agree(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, {"lockInStrictMode": "true"}, sets="a", slaves=1)
    try:
        await pairs.up()
        await until(lambda: _granted(pairs, 0, "c1"), "both are known")
        pairs.kill("a", 0)
        await pairs.acting("a")
        assert await lock(pairs, 1, "c1") == []
        assert "2 replicas must agree, and only 1 are alive" in pairs.log("a", 1) or (
            "grants no queue locks" in pairs.log("a", 1)
        )
    finally:
        await pairs.close()
