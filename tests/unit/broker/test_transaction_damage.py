"""Damaged records in the topics of transactions: the others are committed and checked all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.broker.conftest import Served

from batonmq.broker.messages.internal import put
from batonmq.broker.transaction.checker import Checker
from batonmq.broker.transaction.part import TransactionPart
from batonmq.protocol.message.layout import POSITIONS
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import MessageExt, StoredMessage
from batonmq.protocol.names import TRANS_OP_HALF_TOPIC
from batonmq.store.results import PutResult


async def half(served: Served, key: str) -> PutResult:
    properties = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": key}
    message = StoredMessage(topic="TopicJ", queue_id=0, body=b"x", properties=encode_properties(properties))
    stored = served.broker.redirects.apply(message, properties)
    assert stored is not None
    outcome = await put(served.broker.appender, stored)
    assert outcome.result is not None
    return outcome.result


def damage(served: Served, result: PutResult, field: str) -> None:
    path = served.store.config.commit_log_path / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(result.physical_offset + POSITIONS[field])
        file.write(b"\x7f\xff\xff\xf0")


@pytest.mark.parametrize("field", ["size", "magic", "queue_offset", "sys_flag", "body_size"])
async def test_a_new_master_knows_the_transactions_but_for_damaged_half_messages(
    served: Served, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = (each for each in served.parts if isinstance(each, TransactionPart))
    served.broker.appender.listeners.append(part.records_visible)
    results = [await half(served, key) for key in "abc"]
    damage(served, results[0], field)
    part.role_changed(served.broker.role)
    term = part.term
    assert term is not None
    async with asyncio.timeout(5):
        await term.wait_ready()
    assert [term.half_message(each.physical_offset) is not None for each in results[1:]] == [True, True]
    assert term.window.is_undecided(1) and term.window.is_undecided(2)
    checker, asked = Checker(served.broker, term), []
    monkeypatch.setattr(checker, "_look_at", asked_about(asked))
    await checker.round()
    assert asked == [1, 2]
    assert term.window.is_undecided(1) and term.window.is_undecided(2)
    part.role_ending()
    await part.stop()


def asked_about(offsets: list[int]) -> Callable[..., Awaitable[None]]:
    async def look_at(record: MessageExt, *_: object) -> None:
        offsets.append(record.queue_offset)

    return look_at


async def test_a_damaged_op_message_hides_no_other(served: Served) -> None:
    (part,) = (each for each in served.parts if isinstance(each, TransactionPart))
    served.broker.appender.listeners.append(part.records_visible)
    for key in "abc":
        await half(served, key)
    ops = [
        StoredMessage(
            topic=TRANS_OP_HALF_TOPIC,
            queue_id=0,
            body=f"{offset},".encode(),
            properties=encode_properties({"TAGS": "d"}),
        )
        for offset in range(3)
    ]
    outcomes = [await put(served.broker.appender, op) for op in ops]
    assert outcomes[0].result is not None
    damage(served, outcomes[0].result, "size")
    part.role_changed(served.broker.role)
    assert part.term is not None
    async with asyncio.timeout(5):
        await part.term.wait_ready()
    assert [part.term.window.is_undecided(offset) for offset in range(3)] == [True, False, False]
    part.role_ending()
    await part.stop()
