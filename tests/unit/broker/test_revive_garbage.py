"""The revive topic may hold anything, for clients can write to it. A new master reads all of it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from tests.unit.broker.conftest import Served

from batonmq.broker.pop.part import PopPart
from batonmq.broker.pop.reviver import Reviver
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage

NUMBERS = (
    0,
    1,
    2,
    5,
    -1,
    127,
    128,
    1 << 31,
    (1 << 60) - 1,
    1 << 60,
    (1 << 62) - 1,
    (1 << 63) - 1,
    -(1 << 63),
)
TEXTS = ("TopicJ", "g", "", ".", "..", "../x", "a/b", "a\0b", "x" * 300, "%RETRY%g", "é", "1", "-1", "²")
MEMBERS = {
    "ck": ("so", "pt", "it", "bm", "n", "q", "t", "c", "ro", "d", "bn", "rp", "sp", "nb", "pp"),
    "ack": ("ao", "so", "c", "t", "q", "pt", "bn", "aol", "bb"),
    "bAck": ("ao", "so", "c", "t", "q", "pt", "bn", "aol", "bb"),
    "order": ("t", "c", "q", "nb", "r", "info"),
}


def value(rng: random.Random, name: str) -> Any:
    kind = rng.random()
    if name in ("t", "c") and kind < 0.8:
        return rng.choice(("TopicJ", "g")) if kind < 0.5 else rng.choice(TEXTS)
    if name in ("bn", "rp"):
        return rng.choice((None, "broker-a", "other", *TEXTS))
    if name == "info":
        return {
            "popTime": rng.choice(NUMBERS),
            "invisibleTime": rng.choice((None, *NUMBERS)),
            "offsetList": sorted(rng.choices(NUMBERS, k=rng.randrange(4))),
            "consumed": {str(rng.choice(NUMBERS)): rng.choice(NUMBERS)},
            "nextVisible": {str(rng.choice(NUMBERS)): rng.choice(NUMBERS)},
            "acked": rng.choice(NUMBERS),
            "lastConsume": rng.choice(NUMBERS),
        }
    if name in ("d", "aol"):
        return rng.choice((None, [], [0], [0, 1, 2], rng.choices(NUMBERS, k=rng.randrange(1, 200))))
    if name in ("sp", "bb"):
        return rng.choice((True, False, 1, "true"))
    return rng.choice(NUMBERS) if kind < 0.95 else rng.choice((None, "1", 1.5, [], {}))


def garbage(rng: random.Random) -> StoredMessage:
    tag = rng.choice(("ck", "ck", "ack", "bAck", "order", "other"))
    shape = rng.random()
    if shape < 0.05:
        body = rng.randbytes(rng.randrange(40))
    elif shape < 0.08:
        body = b"[" * 5_000
    else:
        body = json.dumps({name: value(rng, name) for name in MEMBERS.get(tag, ("t",))}).encode()
    return StoredMessage(
        topic="rmq_sys_REVIVE_LOG_DefaultCluster",
        queue_id=rng.randrange(2),
        body=body,
        properties=encode_properties({"TAGS": tag}),
    )


@pytest.mark.parametrize("seed", range(8))
async def test_a_new_master_reads_over_garbage(
    served: Served, seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    broker = served.broker
    topic = "rmq_sys_REVIVE_LOG_" + broker.settings.broker.broker_cluster_name
    broker.tables.topics.update(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2))
    broker.tables.subscriptions.update(SubscriptionGroupConfig(group_name="g"))
    for number in range(8):
        served.put(number % 2, b"x")
    (part,) = (each for each in served.parts if isinstance(each, PopPart))
    learned: list[str | None] = []
    learn = Reviver._learn
    monkeypatch.setattr(
        Reviver, "_learn", lambda self, record: (learned.append(record.tags), learn(self, record))[1]
    )
    for _ in range(200):
        message = garbage(rng)
        message.topic = topic
        served.store.put([message])
    served.store.dispatch()
    broker.appender.listeners.append(part.records_visible)
    part.role_changed(broker.role)
    async with asyncio.timeout(20):
        while not part.popper.ready:
            await asyncio.sleep(0.002)
        assert len(learned) == 200
        for _ in range(100):  # and the same while it serves
            message = garbage(rng)
            message.topic = topic
            served.store.put([message])
        broker.appender.progress()
        while len(learned) < 300:
            await asyncio.sleep(0.002)
        served.clock.advance(60_000)
        part.reviver._on_timer()
        await asyncio.sleep(0.05)
        part.journal.settle()
        part.journal.on_tick()
        part.orders.encode()
    part.role_ending()
    await part.stop()
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []
