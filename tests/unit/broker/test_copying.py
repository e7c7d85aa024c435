"""What a slave copies from its master, while the master goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.conftest import Served

from batonmq.broker.replica.slave_sync import SlaveSync
from batonmq.broker.tables.filters import FilterTable
from batonmq.broker.tables.part import TablesPart
from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper
from batonmq.protocol.bodies.topics import TopicConfigAndMappingSerializeWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import GetAllConsumerOffset, GetAllDelayOffset
from batonmq.protocol.headers.broker.replication import GetAllConsumerFilter
from batonmq.protocol.headers.broker.topics import GetAllSubscriptionGroup, GetAllTopicConfig
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


async def test_a_slave_takes_the_masters_newer_filters_and_keeps_its_own(served: Served) -> None:
    (part,) = (part for part in served.parts if isinstance(part, TablesPart))
    (copy,) = (table.copy for table in part.tables() if table.name == "consumerFilter")
    assert copy is not None
    own, masters = served.broker.tables.filters, FilterTable(lambda: 5)

    def wants(topic: str, expression: str, version: int) -> SubscriptionData:
        return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")

    own.register("g", [wants("A", "a = 1", 1), wants("B", "a = 1", 9)])
    masters.register("g", [wants("A", "a = 2", 2), wants("B", "a = 2", 8), wants("C", "a = 2", 1)])

    class Master:
        announces_changes, address = True, "m"

        async def fetch(self, header: Header) -> bytes:
            assert isinstance(header, GetAllConsumerFilter) and self.announces_changes
            return masters.encode()

    await copy(Master())
    found = {topic: own.get(topic, "g") for topic in "ABC"}
    assert [each and each.data.expression for each in found.values()] == ["a = 2", "a = 1", "a = 2"]
    java = Master()
    java.announces_changes = False
    await copy(java)  # sends nothing


@pytest.mark.parametrize("announces_changes", [True, False])
async def test_tables_that_an_older_master_does_not_have_are_no_failure(
    served: Served, announces_changes: bool
) -> None:
    """Else a slave that is upgraded first would copy everything ten times a second."""
    known = (GetAllTopicConfig, GetAllConsumerOffset, GetAllSubscriptionGroup, GetAllDelayOffset)
    asked: list[str] = []

    class Older:
        address, access_control = "m", "another"

        async def fetch(self, header: Header) -> bytes:
            if not isinstance(header, known):
                asked.append(type(header).__name__)
                raise MQError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type not supported")
            return b"{}"

    master: Any = Older()
    master.announces_changes = announces_changes
    none: Any = None
    tables = served.broker.tables
    await SlaveSync(none, none, tables, served.store).copy(master)
    assert asked


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
