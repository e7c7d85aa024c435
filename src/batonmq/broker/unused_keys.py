"""Keys of RocketMQ's broker that mean nothing here, and why: a file that sets one gets a warning."""

from __future__ import annotations

from typing import Final

_LOG_AT_ONCE: Final = "check points and acks of pop consumers are written to the log at once"
_REVIVED_WHEN_DUE: Final = "a batch of a pop consumer is brought back when its time is over, from memory"
_UNTIL_DONE: Final = "it is tried until it succeeds"
_ONE_LOOP: Final = "requests do not run in pools of threads"
_ALWAYS: Final = "these metrics are always there; metricsExporterType=DISABLE switches all off"
_WOKEN: Final = "waiting pops are woken by each message and by each settled batch"

UNUSED_KEYS: Final = {
    # pop
    "popConsumerFSServiceInit": _LOG_AT_ONCE,
    "popConsumerKVServiceInit": _LOG_AT_ONCE,
    "popConsumerKVServiceEnable": _LOG_AT_ONCE,
    "popConsumerKVServiceLog": _LOG_AT_ONCE,
    "enablePopBufferMerge": _LOG_AT_ONCE,
    "popCkStayBufferTime": _LOG_AT_ONCE,
    "popCkStayBufferTimeOut": _LOG_AT_ONCE,
    "popCkOffsetMaxQueueSize": _LOG_AT_ONCE,
    "enablePopBatchAck": _LOG_AT_ONCE,
    "appendAckAsync": _LOG_AT_ONCE,
    "appendCkAsync": _LOG_AT_ONCE,
    "reviveInterval": _REVIVED_WHEN_DUE,
    "reviveMaxSlow": _REVIVED_WHEN_DUE,
    "reviveScanTime": _REVIVED_WHEN_DUE,
    "reviveAckWaitMs": _REVIVED_WHEN_DUE,
    "enableSkipLongAwaitingAck": _REVIVED_WHEN_DUE,
    "popReviveMaxReturnSizePerRead": _REVIVED_WHEN_DUE,
    "popReviveMaxAttemptTimes": _UNTIL_DONE,
    "skipWhenCKRePutReachMaxTimes": _UNTIL_DONE,
    "popPollingMapExpireTimeSeconds": _WOKEN,
    "popLongPollingForceNotifyInterval": _WOKEN,
    "enableNotifyBeforePopCalculateLag": _WOKEN,
    "enableNotifyAfterPopOrderLockRelease": _WOKEN,
    "enablePopMessageThreshold": "popCkMaxBufferSize limits what is handed out and not acknowledged",
    "popInflightMessageThreshold": "popCkMaxBufferSize limits what is handed out and not acknowledged",
    "enablePopLog": "the level of the log decides",
    "enablePopMetrics": _ALWAYS,
    "ackMessageThreadPoolNums": _ONE_LOOP,
    "ackThreadPoolQueueCapacity": _ONE_LOOP,
    "waitTimeMillsInAckQueue": _ONE_LOOP,
    # timers
    "timerGetMessageThreadNum": _ONE_LOOP,
    "timerPutMessageThreadNum": _ONE_LOOP,
    "timerEnableDisruptor": _ONE_LOOP,
    "timerWarmEnable": "the files of the timer are not mapped into memory",
    "timerSkipUnknownError": _UNTIL_DONE,
    "timerEnableRetryUntilSuccess": _UNTIL_DONE,
    "timerInterceptDelayLevel": "messages with a delay level wait in SCHEDULE_TOPIC_XXXX",
    "timerEnableCheckMetrics": "waiting messages are counted from the timer log at each start",
    "timerCheckMetricsWhen": "waiting messages are counted from the timer log at each start",
    "timerMetricSmallThreshold": "waiting messages are counted from the timer log at each start",
    "timerProgressLogIntervalMs": "metrics show the progress",
    "timerColdDataCheckIntervalMs": "old messages are always brought into memory by another thread",
    # transactions
    "transactionMetricFlushInterval": "half messages are counted again in each round of checks",
    "enableTransactionMetrics": _ALWAYS,
    "endTransactionThreadPoolNums": _ONE_LOOP,
    "waitTimeMillsInTransactionQueue": _ONE_LOOP,
}
