"""GET_BROKER_RUNTIME_INFO: figures of the running broker. RocketMQ's tools print these keys."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Final

from batonmq.broker.context import Broker
from batonmq.broker.stats import Counter
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import encode
from batonmq.protocol.versions import PROTOCOL_VERSION, version_name
from batonmq.store.disk import used_ratio

UNLIMITED_QUEUE: Final = "100000"
"""Reported as the capacity of thread pools that this broker does not have."""

PUT_TIMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
"""Classes of RocketMQ's putMessageDistributeTime."""
NOT_MEASURED: Final[Mapping[str, object]] = {
    "putMessageDistributeTime": " ".join(f"[{each}]:0" for each in PUT_TIMES),
    "putMessageEntireTimeMax": 0,
    "putMessageFailedTimes": 0,
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "getMessageEntireTimeMax": 0,
    "dispatchMaxBuffer": 0,
}
"""Apache's exporter for Prometheus reads these, and shows no figure of a broker that lacks one. The metric
`rocketmq_rpc_latency` has the times."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the request of this module."""

    def runtime_info_of(request: Request, header: wire.GetBrokerRuntimeInfo) -> Reply:
        return Reply(body=encode(KVTable(table=runtime_info(broker))))

    dispatcher.on(wire.GetBrokerRuntimeInfo, runtime_info_of)


def runtime_info(broker: Broker) -> dict[str, str]:
    """The figures that `clusterList` and `brokerStatus` print, every value as text."""
    now_ms, stats, store = broker.clock.now_ms(), broker.stats, broker.store
    path = broker.settings.store.commit_log_path
    disk, used = shutil.disk_usage(path), used_ratio(path)
    stored, stored_size = stats.put_messages.total, stats.put_bytes.total
    unflushed = max(0, store.max_offset - store.flushed_offset)
    info: dict[str, object] = {
        "brokerVersionDesc": version_name(PROTOCOL_VERSION),
        "brokerVersion": PROTOCOL_VERSION,
        "brokerActive": str(broker.role.serves and not broker.role.stopping).lower(),
        "bootTimestamp": stats.started_ms,
        "runtime": _duration(now_ms - stats.started_ms),
        "startAcceptSendRequestTimeStamp": broker.settings.broker.start_accept_send_request_time_stamp,
        "msgPutTotalYesterdayMorning": stats.put_by_yesterday,
        "msgPutTotalTodayMorning": stats.put_by_today,
        "msgPutTotalTodayNow": stats.users_put,
        "msgGetTotalYesterdayMorning": stats.get_by_yesterday,
        "msgGetTotalTodayMorning": stats.get_by_today,
        "msgGetTotalTodayNow": stats.users_get,
        "putTps": _rates(stats.put_messages),
        "getFoundTps": _rates(stats.found_pulls),
        "getMissTps": _rates(stats.missed_pulls),
        "getTotalTps": _rates(stats.found_pulls, stats.missed_pulls),
        "getTransferredTps": _rates(stats.get_messages),
        "getTransferedTps": _rates(stats.get_messages),  # the spelling of 4.x
        "putMessageTimesTotal": stored,
        "putMessageSizeTotal": stored_size,
        "putMessageAverageSize": stored_size / stored if stored else 0.0,
        "commitLogMinOffset": store.min_offset,
        "commitLogMaxOffset": store.max_offset,
        "commitLogDiskRatio": f"{used:.2f}",
        f"commitLogDiskRatio_{path}": f"{used:.2f}",
        "consumeQueueDiskRatio": f"{used:.2f}",
        "commitLogDirCapacity": f"Total : {_size(disk.total)}, Free : {_size(disk.free)}.",
        "earliestMessageTimeStamp": store.earliest_message_time(),
        "dispatchBehindBytes": max(0, store.max_offset - store.dispatched_offset),
        "remainHowManyDataToFlush": _size(unflushed),
        "remainTransientStoreBufferNumbs": 0,
        "pageCacheLockTimeMills": 0,
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": UNLIMITED_QUEUE,
    }
    # One event loop serves all requests: there are no thread pools with queues.
    for pool in ("send", "pull", "litePull", "query", "ack"):
        info[f"{pool}ThreadPoolQueueSize"] = 0
        info[f"{pool}ThreadPoolQueueCapacity"] = UNLIMITED_QUEUE
        info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    info["sendThreadPoolQueueCapacity"] = broker.settings.broker.send_thread_pool_queue_capacity
    # The tools read these five even if there is no timer wheel.
    info |= {"timerReadBehind": 0, "timerOffsetBehind": 0, "timerCongestNum": 0}
    info |= {"timerEnqueueTps": 0.0, "timerDequeueTps": 0.0}
    info |= NOT_MEASURED
    for figures in broker.runtime_info:
        info |= figures()
    return {key: str(value) for key, value in sorted(info.items())}


def _rates(*counters: Counter) -> str:
    """Rates per second within the last minute, hour and day, in the form that the tools parse."""
    windows = ("minute", "hour", "day")
    sums = (sum(getattr(c, window).snapshot().per_second for c in counters) for window in windows)
    return " ".join(f"{value:.2f}" for value in sums)


def _duration(ms: int) -> str:
    seconds = max(0, ms) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: float) -> str:
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            return f"{count:.1f} {unit}"
    raise AssertionError("unreachable")
