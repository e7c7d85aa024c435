"""The table of static topics: its file, and what slaves and name servers get of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batonmq.broker.tables.mappings import MappingTable
from batonmq.common.clock import ManualClock
from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem, TopicQueueMappingDetail
from batonmq.protocol.errors import MQError

FILE = Path(__file__).parents[2] / "data" / "broker" / "topicQueueMapping.json"
"""A broker of Apache RocketMQ 5.5.0 wrote it (all but one topic cut out): a queue that came from another
broker."""


@pytest.fixture
def table() -> MappingTable:
    return MappingTable(ManualClock())


def mapping(*items: LogicQueueMappingItem, epoch: int = 1, **fields: object) -> TopicQueueMappingDetail:
    values = {"topic": "T", "total_queues": 1, "bname": "a", "epoch": epoch, "hosted_queues": {0: [*items]}}
    return TopicQueueMappingDetail(**{**values, **fields})  # type: ignore[arg-type]


def part(gen: int, bname: str, logic_offset: int, queue_id: int = 0) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, queue_id=queue_id, bname=bname, logic_offset=logic_offset)


def test_rocketmqs_file_is_read_and_ours_has_the_same_keys(table: MappingTable) -> None:
    table.restore(FILE.read_bytes())
    (name,) = table
    assert table.table[name].hosted_queues[0] == [
        part(0, "TestBrokerName_1", 0),
        part(1, "TestBrokerName_2", 10_000),
    ]
    written = json.loads(table.encode())
    assert written == json.loads(FILE.read_text().replace("0:[", '"0":['))


def test_name_servers_get_the_queues_that_the_broker_leads(table: MappingTable) -> None:
    queues = {0: [part(0, "a", 0, 4)], 1: [part(0, "a", 0, 5), part(1, "b", 9)]}
    table.update(mapping(total_queues=2, hosted_queues=queues))
    info = table.infos()["T"]
    assert (info.curr_id_map, info.total_queues, info.bname, info.epoch) == ({0: 4}, 2, "a", 1)


def test_queues_that_a_newer_mapping_leaves_out_stay(table: MappingTable) -> None:
    table.update(mapping(part(0, "a", 0)))
    table.update(mapping(epoch=2, total_queues=2, hosted_queues={1: [part(0, "a", 0, 1)]}))
    assert table.table["T"].hosted_queues == {0: [part(0, "a", 0)], 1: [part(0, "a", 0, 1)]}


def test_a_mapping_that_is_refused_changes_nothing(table: MappingTable) -> None:
    table.update(mapping(part(0, "a", 0), part(1, "b", 100)))
    version, known = table.version, table.table["T"]
    announced: list[int] = []
    table.listeners.append(lambda: announced.append(1))
    for wrong in (
        mapping(part(0, "a", 0), part(1, "b", 100), epoch=0),
        mapping(part(0, "a", 0), part(1, "b", 50), epoch=2),
        mapping(part(0, "c", 0), part(1, "b", 100), epoch=2),
        mapping(part(1, "b", 100), part(0, "a", 0), epoch=2),
        mapping(part(0, "a", -1), part(1, "b", 100), epoch=2),
    ):
        with pytest.raises(MQError):
            table.update(wrong)
    assert (table.version, table.table["T"], announced) == (version, known, [])


def test_the_first_part_can_be_dropped_but_not_the_last_one(table: MappingTable) -> None:
    table.update(mapping(part(0, "b", 0), part(1, "a", 100)))
    assert not table.drop_part("T", 0, gen=1)
    assert not table.drop_part("other", 0, gen=0)
    assert table.drop_part("T", 0, gen=0)
    assert table.table["T"].hosted_queues == {0: [part(1, "a", 100)]}
    assert not table.drop_part("T", 0, gen=1)


def test_a_slave_notices_a_change_and_only_a_change(table: MappingTable) -> None:
    slave = MappingTable(ManualClock())
    table.update(mapping(part(0, "a", 0)))
    assert slave.replace(table.table, table.version)
    assert not slave.replace(table.table, table.version)
    assert slave.get("T") == table.get("T")
    table.delete("T")
    assert slave.replace(table.table, table.version) and "T" not in slave
