"""The topic table: system topics, creation on send, changes, and the file RocketMQ wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.broker.fakes import make_config

from batonmq.broker.tables import topics as topics_module
from batonmq.broker.tables.deleted_topics import MAX_NAMES
from batonmq.broker.tables.topics import TopicTable
from batonmq.common.clock import ManualClock
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.names import AUTO_CREATE_TOPIC

DATA = Path(__file__).parents[2] / "data" / "broker"


def table(**keys: object) -> TopicTable:
    return TopicTable(make_config(**keys), ManualClock())


def test_system_topics_are_those_of_a_rocketmq_broker() -> None:
    """Against the answer of RocketMQ 5.5, without timer wheel, to GET_ALL_TOPIC_CONFIG; its RocksDB topics do
    not exist here."""
    java = json.loads((DATA / "wire" / "alltopics.json").read_bytes())["topicConfigTable"]
    made_by_test = {"TopicJ", "TopicA1", "%RETRY%GroupJ"}
    expected = {n: c for n, c in java.items() if n not in made_by_test and "ROCKSDB" not in n}
    ours = json.loads(table(timer_wheel_enable=False).encode())["topicConfigTable"]
    assert ours == expected


@pytest.mark.parametrize(
    ("keys", "topic", "perm"),
    [
        ({"auto_create_topic_enable": False}, "TBW102", None),
        ({"cluster_topic_enable": False}, "DefaultCluster", 1),
        ({"broker_topic_enable": False}, "broker-a", 1),
        ({"trace_topic_enable": True}, "RMQ_SYS_TRACE_TOPIC", 6),
        ({"timer_wheel_enable": True}, "rmq_sys_wheel_timer", 6),
        ({"timer_wheel_enable": False}, "rmq_sys_wheel_timer", None),
    ],
)
def test_system_topics_follow_the_configuration(keys: dict[str, bool], topic: str, perm: int | None) -> None:
    found = table(**keys).get(topic)
    assert (None if found is None else found.perm) == perm


@pytest.mark.parametrize(
    ("topic", "system"),
    [
        ("TBW102", True),
        ("broker-a", True),
        ("rmq_sys_x", True),
        ("DefaultCluster_REPLY_TOPIC", True),
        ("t", False),
    ],
)
def test_is_system(topic: str, system: bool) -> None:
    assert table().is_system(topic) is system


def test_a_topic_is_created_from_the_template_and_announced() -> None:
    topics = table(default_topic_queue_nums=8)
    announced: list[Sequence[TopicConfig]] = []
    topics.listeners.append(announced.append)
    before = topics.version
    made = topics.create_on_send("orders", "TBW102", 4, sys_flag=1)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.topic_sys_flag) == (4, 4, 6, 1)
    assert announced == [(made,)]
    assert topics.version.counter == before.counter + 1
    assert topics.create_on_send("orders", "TBW102", 99) is made
    assert len(announced) == 1


@pytest.mark.parametrize(("wish", "queues"), [(4, 4), (99, 8), (0, 0), (-3, 0)])
def test_queues_are_limited_by_the_template(wish: int, queues: int) -> None:
    made = table(default_topic_queue_nums=8).create_on_send("t", "TBW102", wish)
    assert made is not None and made.write_queue_nums == queues


def test_no_topic_without_an_inheritable_template() -> None:
    assert table().create_on_send("t", "NoSuchTemplate", 4) is None
    assert table().create_on_send("t", "SELF_TEST_TOPIC", 4) is None, "its permissions do not inherit"
    assert table(auto_create_topic_enable=False).create_on_send("t", "TBW102", 4) is None


def test_auto_creation_can_be_disabled_at_run_time() -> None:
    topics = table()
    topics.configure(make_config(auto_create_topic_enable=False))
    assert topics.create_on_send("t", "TBW102", 4) is None
    topics.configure(make_config())
    assert topics.create_on_send("t", "TBW102", 4) is not None


def test_retry_topics_are_created_once_and_follow_order() -> None:
    topics = table()
    first = topics.create_on_send_back("%RETRY%g", 1)
    assert topics.create_on_send_back("%RETRY%g", 5) is first
    ordered = topics.create_on_send_back("%RETRY%g", 1, order=True)
    assert ordered.order and ordered.read_queue_nums == 1
    assert not first.order, "a config that was handed out does not change"


def test_update_merges_attributes_and_refuses_whole_lists() -> None:
    topics = table()
    topics.update(TopicConfig(topic_name="t", attributes={"+message.type": "FIFO"}))
    topics.update(TopicConfig(topic_name="t", perm=4))
    found = topics.get("t")
    assert found is not None and found.attributes == {"message.type": "FIFO"} and found.perm == 4
    version = topics.version
    with pytest.raises(MQError):
        topics.update(TopicConfig(topic_name="u"), TopicConfig(topic_name="v", attributes={"+foo": "1"}))
    assert "u" not in topics and topics.version == version


def test_delete() -> None:
    topics = table()
    topics.create_on_send("t", "TBW102", 4)
    announced: list[Sequence[TopicConfig]] = []
    topics.listeners.append(announced.append)
    assert topics.delete("t") and not topics.delete("t")
    assert announced == [()]


def test_a_deleted_topic_is_recreated_only_on_request() -> None:
    topics = table()
    changes: list[bytes] = []
    topics.deleted.on_change = lambda: changes.append(topics.deleted.encode())
    topics.create_on_send("t", "TBW102", 4)
    topics.delete("t")
    topics.recreate_missing([("t", 0), ("u", 3)])
    assert "t" not in topics and "u" in topics and "t" in topics.deleted
    topics.create_on_send("t", "TBW102", 4)
    assert "t" not in topics.deleted and changes == [b'["t"]', b"[]"]
    again = table()
    again.recreate_missing([("t", 0)])
    assert "t" in again


def test_a_recreated_topic_has_no_more_queues_than_others_may_have() -> None:
    topics = table()
    topics.recreate_missing([("t", 999_999_999)])
    found = topics.get("t")
    assert found is not None and found.read_queue_nums == found.write_queue_nums == 16_384


def test_only_the_latest_deleted_topics_are_kept() -> None:
    deleted = table().deleted
    deleted.replace(f"t{number:06d}" for number in range(MAX_NAMES))
    deleted.add("last")
    assert "last" in deleted and "t000000" not in deleted and "t000001" in deleted
    other = table().deleted
    other.restore(deleted.encode())
    assert other.encode() == deleted.encode()


def test_order_configuration_marks_known_topics() -> None:
    topics = table()
    topics.create_on_send("t", "TBW102", 4)
    version = topics.version
    topics.set_order(["unknown"])
    assert topics.version == version
    topics.set_order(["t", "unknown"])
    assert topics.is_order("t") and "unknown" not in topics


def test_pages_start_over_when_the_table_has_changed() -> None:
    topics = table()
    names = sorted(topics)
    assert list(topics.page(topics.version, 3, 2)) == names[3:5]
    assert list(topics.page(None, 3, 2)) == names[:2]
    assert list(topics.page(DataVersion(counter=99), 3, 2)) == names[:2]
    assert topics.page(topics.version, 999, 2) == {}


def test_a_file_of_rocketmq_is_read_and_written_back_the_same() -> None:
    data = (DATA / "java" / "topics.json").read_bytes()
    topics = table(timer_wheel_enable=False)  # as the broker that wrote it
    topics.restore(data)
    java, ours = json.loads(data), json.loads(topics.encode())
    assert ours["dataVersion"] == java["dataVersion"]
    assert ours["topicConfigTable"] == java["topicConfigTable"]
    found = topics.get("TopicA1")
    assert found is not None and found.attributes == {"message.type": "FIFO"}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"topicConfigTable":[]}', b'{"topicConfigTable":{"t":{"perm":"x"}}}']
)
def test_a_broken_file_changes_nothing(data: bytes) -> None:
    topics = table()
    before = topics.encode()
    with pytest.raises(ValueError):
        topics.restore(data)
    assert topics.encode() == before


def test_a_slave_loads_the_masters_table() -> None:
    master, slave = table(), table()
    master.create_on_send("t", "TBW102", 4)
    assert slave.replace(master.table, master.version)
    assert slave.encode() == master.encode()
    assert not slave.replace(master.table, master.version)


def test_the_state_version_is_part_of_each_new_version() -> None:
    topics = table()
    topics.state_version = 7
    topics.touch()
    assert topics.version.state_version == 7


def _copied(topics: TopicTable, names: str, epoch: int, stored: str, *, complete: bool = False) -> bool:
    """A slave's copy of its master's table: topics of one letter; `stored` have messages in the log."""
    version = DataVersion(timestamp=1, counter=len(names), state_version=epoch)
    table = {name: TopicConfig(topic_name=name) for name in names}
    more = topics.infer_deleted(set(stored), table, version, complete=complete)
    topics.replace(table, version)
    return more


def test_a_topic_that_a_new_rocketmq_master_lacks_does_not_count_as_deleted() -> None:
    topics = table()
    topics.begin_term(1)
    topics.update(TopicConfig(topic_name="A"), TopicConfig(topic_name="B", write_queue_nums=3))
    assert _copied(topics, "A", 2, "AB")
    assert "B" not in topics and "B" not in topics.deleted
    assert not _copied(topics, "AC", 2, "AB"), "it is reported once"
    topics.recreate_missing([("A", 0), ("B", 0)])
    found = topics.get("B")
    assert found is not None and found.write_queue_nums == 3


def test_a_topic_that_a_rocketmq_master_deletes_stays_deleted() -> None:
    topics = table()
    _copied(topics, "AB", 2, "AB")
    assert not _copied(topics, "A", 2, "AB")
    topics.recreate_missing([("A", 0), ("B", 0)])
    assert "B" not in topics


def test_a_topic_deleted_before_a_replica_joined_stays_deleted() -> None:
    topics = table()
    _copied(topics, "A", 2, "")
    assert not _copied(topics, "AC", 2, "AB")
    topics.recreate_missing([("A", 0), ("B", 0)])
    assert "B" not in topics


def test_a_topic_that_our_master_lacks_is_deleted() -> None:
    topics = table()
    _copied(topics, "AB", 1, "AB", complete=True)
    assert not _copied(topics, "A", 2, "AB", complete=True)
    topics.recreate_missing([("A", 0), ("B", 0)])
    assert "B" not in topics


def test_topics_of_rocketmq_whose_attributes_have_no_effect_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lite = TopicConfig(topic_name="L", attributes={"message.type": "LITE", "cleanup.policy": "DELETE"})
    plain = TopicConfig(topic_name="P", attributes={"message.type": "FIFO"})
    topics = table()
    for counter in (5, 6):
        topics.replace({"L": lite, "P": plain}, DataVersion(timestamp=1, counter=counter, state_version=0))
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["topic L: message.type=LITE is not supported by this broker and has no effect"]


def test_light_queues_are_topics_that_are_not_in_the_table() -> None:
    announced: list[Sequence[TopicConfig]] = []
    topics = TopicTable(make_config(), ManualClock(), light_queues=True)
    topics.listeners.append(announced.append)
    found = topics.get("%LMQ%a")
    assert found == TopicConfig(topic_name="%LMQ%a", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert "%LMQ%a" in topics and "%LMQ" not in topics and "%LMQ%" not in topics
    topics.update(TopicConfig(topic_name="%LMQ%a", read_queue_nums=7, write_queue_nums=7))
    assert topics.get("%LMQ%a") == found
    assert not announced and "%LMQ%a" not in topics.table and b"%LMQ%" not in topics.encode()
    assert "%LMQ%a" not in table()


@pytest.mark.parametrize("on", [False, True])
def test_light_queues_in_the_log_are_neither_recreated_nor_deleted_topics(on: bool) -> None:
    """Also while they are switched off: their messages are those of other topics."""
    topics = TopicTable(make_config(), ManualClock(), light_queues=on)
    topics.infer_deleted({"%LMQ%a", "gone"}, {}, DataVersion(), complete=True)
    assert "%LMQ%a" not in topics.deleted and "gone" in topics.deleted
    topics.recreate_missing([("%LMQ%a", 0), ("lost", 0)])
    assert "%LMQ%a" not in topics.table and "lost" in topics.table


def test_senders_cannot_create_topics_without_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics = table()
    monkeypatch.setattr(topics_module, "MOST_CREATED", len(topics) + 2)
    made = [topics.create_on_send(f"t{number}", AUTO_CREATE_TOPIC, 4) for number in range(4)]
    assert [topic is not None for topic in made] == [True, True, False, False]
    assert topics.create_on_send("t0", AUTO_CREATE_TOPIC, 4) is made[0]
    assert (
        len([line for line in caplog.messages if "topics are no longer created automatically" in line]) == 1
    )
    topics.update(TopicConfig(topic_name="by an operator"))
    assert "by an operator" in topics
