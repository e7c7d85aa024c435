"""Where a message of an acting master can go, and the form that it has on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batonmq.broker.escape.core import outward, send_header, usable, without
from batonmq.protocol.bodies.routes import BrokerData, QueueData, TopicQueueMappingInfo, TopicRouteData
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.properties import decode_properties, encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC

REAL = {"REAL_TOPIC": "T", "REAL_QID": "3"}


def message(topic: str, sys_flag: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        topic=topic, queue_id=0, body=b"x", properties=encode_properties(properties), sys_flag=sys_flag
    )


def route() -> TopicRouteData:
    return TopicRouteData(
        [
            QueueData(name, 2, 2, 4 if name == "reads" else 6)
            for name in ("own", "b", "c", "reads", "far", "gone")
        ],
        [
            BrokerData("C", "own", {0: "own:1"}),
            BrokerData("C", "b", {0: "b:1", 1: "b:2"}),
            BrokerData("C", "c", {0: "c:1"}),
            BrokerData("C", "reads", {0: "reads:1"}),
            BrokerData("other", "far", {0: "far:1"}),
            BrokerData("C", "gone", {1: "gone:2"}),
        ],
    )


class TestRoute:
    def test_has_the_masters_of_the_cluster_that_take_messages_but_not_the_own_set(self):
        found = usable("T", route(), "C", "own")
        assert {queue.broker_name for queue in found.write_queues} == {"b", "c"}
        assert len(found.write_queues) == 4
        assert found.master("b") == "b:1"

    def test_of_a_static_topic_has_no_master(self):
        data = route()
        data.topic_queue_mapping_by_broker = {"b": TopicQueueMappingInfo("T", total_queues=4, bname="b")}
        assert not usable("T", data, "C", "own").write_queues

    def test_loses_the_broker_sets_that_were_tried(self):
        found = usable("T", route(), "C", "own")
        assert {queue.broker_name for queue in without(found, {"b:1"}).write_queues} == {"c"}
        assert without(found, set()) is found
        assert not without(found, {"b:1", "c:1"}).write_queues


class TestOutward:
    def test_a_plain_message_stays_as_it_is(self):
        one = message("T", KEYS="k")
        assert outward(one, 1_000) == one

    def test_a_delayed_message_is_delayed_again(self):
        out = outward(message(SCHEDULE_TOPIC, DELAY="2", KEYS="k", **REAL), 1_000)
        assert (out.topic, out.queue_id) == ("T", 3)
        assert decode_properties(out.properties) == {"DELAY": "2", "KEYS": "k"}

    def test_a_timed_message_keeps_its_time(self):
        waiting = message(TIMER_TOPIC, TIMER_OUT_MS="5000", TIMER_DELAY_SEC="9", TIMER_ROLL_TIMES="1", **REAL)
        out = outward(waiting, 1_000)
        assert (out.topic, out.queue_id) == ("T", 3)
        assert decode_properties(out.properties) == {"TIMER_DELIVER_MS": "6000", "TIMER_ROLL_TIMES": "1"}

    def test_a_half_message_is_prepared_again_as_the_first_copy(self):
        half = message(
            TRANS_HALF_TOPIC, PGROUP="p", TRAN_PREPARED_QUEUE_OFFSET="7", TRANSACTION_CHECK_TIMES="2", **REAL
        )
        out = outward(half, 1_000)
        assert (out.topic, out.queue_id) == ("T", 3)
        assert out.sys_flag == MessageSysFlag.TRANSACTION_PREPARED
        assert decode_properties(out.properties) == {
            "PGROUP": "p",
            "TRANSACTION_CHECK_TIMES": "2",
            "TRAN_MSG": "true",
        }

    def test_a_committed_message_loses_the_place_of_its_half_message(self):
        committed = message("T", MessageSysFlag.TRANSACTION_COMMIT | MessageSysFlag.COMPRESSED)
        committed.prepared_transaction_offset = 9
        out = outward(committed, 1_000)
        assert (out.sys_flag, out.prepared_transaction_offset) == (MessageSysFlag.COMPRESSED, 0)

    @pytest.mark.parametrize("queue", ["", "-1", "x", "٣"])
    def test_a_hostile_queue_counts_as_the_first_one(self, queue):
        out = outward(message(SCHEDULE_TOPIC, DELAY="1", REAL_TOPIC="T", REAL_QID=queue), 1_000)
        assert (out.topic, out.queue_id) == ("T", 0)

    @pytest.mark.parametrize("time", ["x", "-5", ""])
    def test_a_hostile_time_is_left_out(self, time):
        out = outward(message(TIMER_TOPIC, TIMER_OUT_MS=time, TIMER_DELIVER_MS="8", **REAL), 1_000)
        assert decode_properties(out.properties) == {"TIMER_DELIVER_MS": "8"}


class TestHeader:
    def test_names_queue_broker_and_group(self):
        one = message("T", MessageSysFlag.COMPRESSED | MessageSysFlag.HOSTS_V6, PGROUP="p", KEYS="k")
        one.reconsume_times, one.flag, one.born_timestamp = 3, 7, 11
        header = send_header(one, 5, "b", "inner")
        assert (header.producer_group, header.topic, header.queue_id, header.broker_name) == (
            "p",
            "T",
            5,
            "b",
        )
        assert (header.sys_flag, header.reconsume_times, header.flag) == (MessageSysFlag.COMPRESSED, 3, 7)
        assert header.properties == one.properties.decode()
        assert send_header(message("T"), 0, "b", "inner").producer_group == "inner"

    def test_refuses_properties_that_are_no_text(self):
        broken = message("T")
        broken.properties = b"K\1\xff\2"
        with pytest.raises(ValueError):
            send_header(broken, 0, "b", "g")


def test_a_committed_batch_arrives_as_its_messages() -> None:
    batch = replace(message("T"), batch=True)
    assert send_header(outward(batch, 1000), 0, "b", "g").batch
    assert not send_header(message("T"), 0, "b", "g").batch
