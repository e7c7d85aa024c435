"""What a slave copies from its master, while the master goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.conftest import Served

from batonmq.broker.replica.slave_sync import SlaveSync
from batonmq.broker.tables.part import TablesPart
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper
from batonmq.protocol.bodies.topics import TopicConfigAndMappingSerializeWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.topics import GetAllTopicConfig
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header


async def test_a_topic_recreated_between_two_copies_is_there_when_the_slave_becomes_master(
    served: Served,
) -> None:
    (part,) = (part for part in served.parts if isinstance(part, TablesPart))
    copies = {table.name: table.copy for table in part.tables()}
    served.put(0, b"x", topic="T")

    class Master:
        announces_changes, address = True, "m"

        async def fetch(self, header: Header) -> bytes:
            if isinstance(header, GetAllTopicConfig):
                # The answer is on its way when the master recreates T and replicates its first message.
                served.store.recreated_topics.add("T")
                return encode(TopicConfigAndMappingSerializeWrapper())
            return encode(ConsumerOffsetSerializeWrapper())

    for name in ("topics", "consumerOffset"):
        copy = copies[name]
        assert copy is not None
        await copy(Master())
    served.broker.role.is_master = False  # the master dies before the next round
    part.term_begins(2)
    assert "T" in served.broker.tables.topics and not served.store.recreated_topics


async def test_a_table_that_cannot_be_copied_does_not_keep_back_the_others() -> None:
    copied: list[str] = []

    def table(name: str, error: Exception | None) -> Any:
        async def copy(master: object) -> None:
            if error is not None:
                raise error
            copied.append(name)

        return SimpleNamespace(copy=copy)

    refused = MQError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no such table")
    tables: Any = SimpleNamespace(
        persistence=[table("a", None), table("b", refused), table("c", ValueError("odd")), table("d", None)]
    )
    none: Any = None
    with pytest.raises(MQError, match="no such table"):
        await SlaveSync(none, none, tables, none).copy(none)
    assert copied == ["a", "d"]
