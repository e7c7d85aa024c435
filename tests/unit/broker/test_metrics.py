"""The metrics of a broker, from its tables and a small real store."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import JAVA, FakeConnection

from batonmq.broker.config import BrokerConfig
from batonmq.broker.messages import metrics as messages
from batonmq.broker.messages.appender import Appender
from batonmq.broker.monitoring.metrics import BrokerMetrics, RpcMeter
from batonmq.broker.parts import all_metrics
from batonmq.broker.replica import metrics as replica
from batonmq.broker.tables import metrics as tables
from batonmq.broker.tables.metrics import LAG_AGE_MS
from batonmq.broker.upkeep import metrics as upkeep
from batonmq.common.config import changeable_keys, keys_of
from batonmq.common.metrics import Metric, read
from batonmq.common.metrics_config import MetricsConfig
from batonmq.net.dispatch import Dispatcher, Request
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from batonmq.protocol.bodies.groups import SimpleSubscriptionData, SubscriptionGroupConfig
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from batonmq.protocol.frame import Command
from batonmq.protocol.tags import tag_subscription

GROUP = "group"


@pytest.fixture
def metrics(served: Served) -> BrokerMetrics:
    served.broker.appender = cast("Appender", SimpleNamespace(backlog=3))
    sources = {metric: source for part in served.parts for metric, source in part.metrics().items()}
    return BrokerMetrics(served.broker.settings.broker, sources)


async def points(metrics: BrokerMetrics, metric: Metric) -> dict[Any, Any]:
    return dict(await read(metrics.sources()[metric]))


def consumer(served: Served, group: str, *topics: str, kind: ConsumeType = ConsumeType.PASSIVELY) -> None:
    served.broker.tables.consumers.register(
        ConsumerData(
            group_name=group,
            consume_type=kind,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.LAST_OFFSET,
            subscription_data_set=[SubscriptionData(topic=topic) for topic in topics],
        ),
        cast("Any", FakeConnection(f"10.0.0.9:{len(list(served.broker.tables.consumers))}")),
        "client",
        language=JAVA,
        version=453,
        now_ms=served.clock.now_ms(),
    )


async def test_messages_are_counted_by_topic_and_group_without_retries(
    served: Served, metrics: BrokerMetrics
) -> None:
    stats = served.broker.stats
    served.broker.tables.topics.update(
        TopicConfig(topic_name="Fifo", attributes={"+message.type": "FIFO"}),
        TopicConfig(topic_name="Any", attributes={"+message.type": "UNSPECIFIED"}),
    )
    for topic in ("TopicJ", "Fifo", "Any", "SCHEDULE_TOPIC_XXXX", "%RETRY%group", "%DLQ%group"):
        stats.count_put(topic, 2, 300)
        stats.count_get(GROUP, topic, 1, 100)
    stats.count_get("CID_RMQ_SYS_x", "TopicJ", 1, 100)
    assert await points(metrics, messages.MESSAGES_IN) == {
        ("TopicJ", "normal", False): 2,
        ("Fifo", "fifo", False): 2,
        ("Any", "normal", False): 2,
        ("SCHEDULE_TOPIC_XXXX", "delay", True): 2,
    }
    assert (await points(metrics, messages.BYTES_IN))["Fifo", "fifo", False] == 300
    stats.count_get(GROUP, "Popped", 5, 500)  # three pops and a pull
    for retry, count in ((False, 1), (True, 2), (False, 1)):
        stats.count_pop(GROUP, "Popped", count, 100 * count, retry=retry)
    assert await points(metrics, messages.MESSAGES_OUT) == {
        ("TopicJ", GROUP, False, ""): 1,
        ("Fifo", GROUP, False, ""): 1,
        ("Any", GROUP, False, ""): 1,
        ("SCHEDULE_TOPIC_XXXX", GROUP, True, ""): 1,
        ("TopicJ", "CID_RMQ_SYS_x", True, ""): 1,
        ("Popped", GROUP, False, False): 2,
        ("Popped", GROUP, False, True): 2,
        ("Popped", GROUP, False, ""): 1,
    }
    sizes = await points(metrics, messages.BYTES_OUT)
    assert sizes["TopicJ", GROUP, False, ""] == 100
    assert [sizes["Popped", GROUP, False, retry] for retry in (False, True, "")] == [200, 200, 100]


async def test_lag_is_what_a_connected_group_has_not_consumed_yet(
    served: Served, metrics: BrokerMetrics
) -> None:
    broker = served.broker
    for queue_id, count in ((0, 5), (1, 2)):  # one a second
        for _ in range(count):
            served.put(queue_id, b"x")
    consumer(served, GROUP, "TopicJ", "%RETRY%group", "NoSuchTopic")
    broker.tables.offsets.commit("unconnected", "TopicJ", 0, 1)
    labels = (GROUP, "TopicJ", False, False)

    # Nothing committed: as in RocketMQ, a queue without an offset is not behind.
    assert await points(metrics, tables.LAG) == {labels: 0}
    assert await points(metrics, tables.LAG_LATENCY) == {labels: 0}

    broker.tables.offsets.commit(GROUP, "TopicJ", 0, 1)
    broker.tables.offsets.commit_pulled(GROUP, "TopicJ", 0, 4)
    broker.tables.offsets.commit(GROUP, "TopicJ", 1, 2)
    assert await points(metrics, tables.LAG) == {labels: 0}, "a walk is not repeated for each metric"
    served.clock.advance(LAG_AGE_MS)
    assert await points(metrics, tables.LAG) == {labels: 4}
    assert await points(metrics, tables.INFLIGHT) == {labels: 3}
    assert await points(metrics, tables.READY) == {labels: 1}
    # Seven messages, a second apart, then another second: the second one is 6 s old, the fifth 3 s.
    assert await points(metrics, tables.LAG_LATENCY) == {labels: 6_000}
    assert await points(metrics, tables.QUEUEING) == {labels: 3_000}


@pytest.mark.parametrize("retry_topic", ["%RETRY%group_TopicJ", "%RETRY%group+TopicJ"])
async def test_groups_that_pop_have_the_lag_of_their_retry_topic_too(
    served: Served, metrics: BrokerMetrics, retry_topic: str
) -> None:
    consumer(served, GROUP, "TopicJ", kind=ConsumeType.POP)
    main, retry = (GROUP, "TopicJ", False, False), (GROUP, "TopicJ", True, False)
    assert await points(metrics, tables.LAG) == {main: 0, retry: 0}
    broker = served.broker
    v2 = "+" in retry_topic
    broker.settings.broker = replace(broker.settings.broker, enable_retry_topic_v2=v2)
    broker.tables.topics.update(TopicConfig(topic_name=retry_topic, read_queue_nums=1, write_queue_nums=1))
    for _ in range(3):
        served.put(0, b"x", topic=retry_topic)
    broker.tables.offsets.commit(GROUP, retry_topic, 0, 1)
    served.clock.advance(LAG_AGE_MS)
    assert await points(metrics, tables.LAG) == {main: 0, retry: 2}
    assert await points(metrics, tables.READY) == {main: 0, retry: 2}


async def test_groups_of_a_proxy_have_a_lag_while_they_pop(served: Served, metrics: BrokerMetrics) -> None:
    """A proxy sends no heartbeats for its clients."""
    broker, now_ms = served.broker, served.clock.now_ms()
    served.put(0, b"x")
    broker.tables.consumers.remember(GROUP, tag_subscription("TopicJ", "*", now_ms), ConsumeType.POP)
    broker.tables.offsets.commit(GROUP, "TopicJ", 0, 0)
    main, retry = (GROUP, "TopicJ", False, False), (GROUP, "TopicJ", True, False)
    assert await points(metrics, tables.LAG) == {main: 1, retry: 0}
    broker.tables.consumers.forget_old_subscriptions(now_ms + 2, 1)
    served.clock.advance(LAG_AGE_MS)
    assert await points(metrics, tables.LAG) == {}


async def test_the_lag_of_a_group_with_tags_counts_only_its_messages(
    served: Served, metrics: BrokerMetrics
) -> None:
    broker, config = served.broker, served.broker.settings
    for number in range(12):
        served.put(0, b"x", tags="A" if number % 3 == 0 else "B")
    wanted = tag_subscription("TopicJ", "A || C", 1)
    broker.tables.consumers.remember(GROUP, wanted, ConsumeType.PASSIVELY)
    broker.tables.offsets.commit(GROUP, "TopicJ", 0, 1)
    broker.tables.offsets.commit_pulled(GROUP, "TopicJ", 0, 5)
    labels = (GROUP, "TopicJ", False, False)

    async def counted(metric: Metric) -> int | float:
        served.clock.advance(LAG_AGE_MS)
        found = await points(metrics, metric)
        return found[labels]

    assert [await counted(metric) for metric in (tables.LAG, tables.INFLIGHT, tables.READY)] == [3, 1, 2]
    config.store = replace(config.store, max_consume_queue_scan=4)
    assert await counted(tables.LAG) == 2, "estimated: one of the first four, so two of eleven"
    config.store = replace(config.store, max_consume_queue_scan=100, sample_count_threshold=1)
    assert await counted(tables.LAG) == 3, "all fit into one block, so nothing is estimated"
    config.broker = replace(config.broker, estimate_accumulation=False)
    assert await counted(tables.LAG) == 11


async def test_the_lag_of_configured_subscriptions(served: Served, metrics: BrokerMetrics) -> None:
    broker = served.broker
    for number in range(4):
        served.put(0, b"x", tags="A" if number else "B")
    wanted = [SimpleSubscriptionData(topic="TopicJ", expression_type="TAG", expression="A")]
    broker.tables.subscriptions.update(
        SubscriptionGroupConfig(group_name=GROUP, subscription_data_set=wanted)
    )
    broker.tables.offsets.commit(GROUP, "TopicJ", 0, 0)
    assert await points(metrics, tables.LAG) == {}
    broker.settings.broker = replace(broker.settings.broker, use_static_subscription=True)
    served.clock.advance(LAG_AGE_MS)
    assert await points(metrics, tables.LAG) == {(GROUP, "TopicJ", False, False): 3}


async def test_connections_are_counted_by_language_and_version(
    served: Served, metrics: BrokerMetrics
) -> None:
    consumer(served, GROUP, "TopicJ", kind=ConsumeType.ACTIVELY)
    consumer(served, "CID_RMQ_SYS_x", "TopicJ")
    for port in (1, 2):
        connection = cast("Any", FakeConnection(f"10.0.0.9:{port}"))
        served.broker.tables.producers.register("p", connection, "c", language=JAVA, version=513, now_ms=0)
    assert await points(metrics, tables.PRODUCERS) == {("java", "v5_5_0", "remoting"): 2}
    assert await points(metrics, tables.CONSUMERS) == {
        (GROUP, "pull", "java", "v5_2_0", "remoting", False): 1,
        ("CID_RMQ_SYS_x", "push", "java", "v5_2_0", "remoting", True): 1,
    }


async def test_the_store_and_the_role(served: Served, metrics: BrokerMetrics) -> None:
    broker, storage = served.broker, ("local", "disk")
    assert await points(metrics, upkeep.RESERVE_TIME) == {}
    served.put(0, b"x")
    served.clock.advance(500)
    assert await points(metrics, upkeep.RESERVE_TIME) == {storage: 500}
    assert await points(metrics, upkeep.FLUSH_BEHIND) == {storage: broker.store.max_offset}
    broker.store.flush()
    assert await points(metrics, upkeep.FLUSH_BEHIND) == {storage: 0}
    assert await points(metrics, upkeep.DISPATCH_BEHIND) == {storage: 0}
    assert (await points(metrics, upkeep.STORAGE_SIZE))[storage] > 0
    broker.role.epoch = 7
    assert await points(metrics, replica.EPOCH) == {(): 7}
    assert await points(metrics, replica.IS_MASTER) == {(): 1}
    assert await points(metrics, replica.IN_SYNC) == {(): 1}
    assert await points(metrics, tables.PERMISSION) == {(): 6}
    assert await points(metrics, tables.TOPICS) == {(): len(broker.tables.topics)}
    assert await points(metrics, tables.GROUPS) == {(): len(broker.tables.subscriptions)}
    assert await points(metrics, messages.WATERMARK) == {("send",): 3}


def test_requests_are_timed_and_held_pulls_apart() -> None:
    now_ns = 20_000_000
    meter = RpcMeter(lambda: now_ns)
    connection = SimpleNamespace(in_flight={})

    def answered(code: int, answer: int, *, held: bool = False, flag: int = 0) -> None:
        request = Request(cast("Any", connection), Command(code, {}, flag=flag))
        request.arrived_ns = now_ns - 5_999_999
        if held:
            connection.in_flight[request] = 0.0
        meter.answered(request, answer)

    pull, send = RequestCode.PULL_MESSAGE, RequestCode.SEND_MESSAGE_V2
    answered(pull, 0)
    answered(pull, 0, held=True)
    answered(send, 0, held=True)  # waits for replicas, which is not long polling
    answered(send, ResponseCode.SYSTEM_BUSY)
    answered(RequestCode.HEART_BEAT, 0, flag=FLAG_ONEWAY)
    for code in (77_777, 88_888):
        answered(code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    counts = {labels: buckets.counts for labels, buckets in cast("Any", meter.latencies())}
    in_5_ms = (0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert counts == {
        ("remoting", "pull_message", "success", False, "success"): in_5_ms,
        ("remoting", "pull_message", "success", True, "success"): in_5_ms,
        ("remoting", "send_message_v2", "success", False, "success"): in_5_ms,
        ("remoting", "send_message_v2", "system_busy", False, "success"): in_5_ms,
        ("remoting", "heart_beat", "success", False, "oneway"): in_5_ms,
        # All unknown codes share one series.
        ("remoting", "unknown", "request_code_not_supported", False, "success"): (
            0,
            0,
            2,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ),
    }


def test_disabled_metrics_leave_the_dispatcher_alone(metrics: BrokerMetrics) -> None:
    dispatcher = Dispatcher()
    metrics.watch(dispatcher)
    assert not dispatcher.interceptors


def test_every_metric_has_a_source_and_its_keys_need_a_restart(metrics: BrokerMetrics) -> None:
    assert set(metrics.sources()) == set(all_metrics())
    assert changeable_keys(BrokerConfig).isdisjoint(keys_of([MetricsConfig]))
