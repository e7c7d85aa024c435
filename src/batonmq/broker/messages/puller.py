"""Serves pulls, with long polling.

The order of the checks, the codes and the header of the answer are RocketMQ's (`PullMessageProcessor`). A
pull that finds no message is held (`held_pulls.py`) until its queue grows or its deadline passes. The body of
the answer consists of views of the mapped commit log: no message becomes a Python object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from batonmq.broker.messages.alarm import Alarm
from batonmq.broker.messages.filters import SqlFilter, filter_of, subscription_of
from batonmq.broker.messages.held_pulls import HeldPull, HeldPulls
from batonmq.broker.role import rejected
from batonmq.broker.tables.broadcast import broadcast_group
from batonmq.broker.tables.subscriptions import SYSTEM_GROUPS
from batonmq.protocol.bodies.clients import ConsumeType, MessageModel, SubscriptionData
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import MASTER_ID, Perm, PullSysFlag, ResponseCode
from batonmq.protocol.errors import FAQ, MQError
from batonmq.protocol.headers.broker.pull import LitePullMessage, PullMessage, PullMessageResponse
from batonmq.protocol.tags import is_tag_type
from batonmq.store.policy import MessageFilter
from batonmq.store.results import GetResult, GetStatus, QueueKey

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

MAX_PULL_BYTES: Final = 128 * 1024 * 1024
"""Most bytes that a pull may request; the limits of the store are much lower."""
PROXY_FOR_BROADCAST: Final = 1
"""`requestSource` of a proxy that pulls for a client of a broadcasting group (`RequestSource`)."""
PULLING_GROUPS: Final = frozenset(
    {*SYSTEM_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"}
)
"""Groups of RocketMQ's tools, exempt from rejectPullConsumerEnable."""

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""NO_MATCHED_LOGIC_QUEUE and NO_MESSAGE_IN_QUEUE are missing: their code depends on the offset."""
_BEYOND_END: Final = frozenset(
    {GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE}
)


class Forbidden:
    """Values of `forbiddenType` in the answer to a pull: the reason."""

    BROKER: Final = 1
    GROUP: Final = 2
    TOPIC: Final = 3
    BROADCASTING_DISABLE: Final = 4
    SUBSCRIPTION: Final = 5


class PullAnswer(msgspec.Struct, gc=False):
    """An answer to a pull. `buffers`: records as in the log; empty unless `code` is SUCCESS."""

    header: PullMessageResponse
    buffers: Sequence[memoryview]
    code: int
    remark: str


class PullCall(Protocol):
    """The caller of a pull, for example one remoting request."""

    @property
    def peer(self) -> str:
        """``ip:port``, for log lines."""

    @property
    def client(self) -> object:
        """The key under which the consumer is registered (its connection)."""

    @property
    def finished(self) -> bool:
        """Whether the caller no longer waits for the answer."""

    def answer(self, answer: PullAnswer) -> None:
        """Answer a pull that was held; called at most once."""

    def fail(self, error: MQError) -> None:
        """Fail a pull that was held; called instead of `answer`."""


@dataclass(slots=True, eq=False)
class Pull:
    """A pull that passed all checks."""

    call: PullCall
    header: PullMessage
    topic: TopicConfig
    group: SubscriptionGroupConfig
    message_filter: MessageFilter | None


class Puller:
    """The pulls of one broker, held ones included."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._held: HeldPulls[Pull] = HeldPulls()
        self._alarm = Alarm(broker.clock, self._held.next_deadline_ms, self._on_deadline)

    @property
    def held(self) -> int:
        """Number of held pulls."""
        return len(self._held)

    # -- requests

    def pull(self, header: PullMessage, call: PullCall) -> PullAnswer | Awaitable[PullAnswer] | None:
        """The answer; None if `call` receives it later. Raises `MQError`, also when awaited."""
        broker = self._broker
        role = broker.role
        if not role.is_master and not role.is_acting and not broker.settings.broker.slave_read_enable:
            raise rejected(role, "pulls (slaveReadEnable=false)")
        pull = self._check(header, call)
        offset = None
        if broker.settings.broker.use_server_side_reset_offset:
            offset = broker.tables.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        broadcaster = self._broadcaster(header, call)
        if offset is None and broadcaster is not None:
            offset = self._broadcast_offset(header, broadcaster)
        if offset is not None:
            bounds = broker.store.queue_bounds(header.topic, header.queue_id)
            result = GetResult(GetStatus.OFFSET_TOO_SMALL, offset, bounds.min_offset, bounds.max_offset)
            remark = "OFFSET_RESET"
        else:
            result = self._read(pull)
            remark = result.status.name
        code, suggested = self._outcome(pull, result, reset=offset is not None)
        self._commit(pull, result)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PullSysFlag.SUSPEND:
            self._hold(pull)
            return None
        if broadcaster is not None:
            moved = code == ResponseCode.PULL_OFFSET_MOVED
            broker.tables.broadcast.update(
                header.topic,
                header.consumer_group,
                header.queue_id,
                result.next_offset if moved else header.queue_offset,
                broadcaster,
                header.request_source == PROXY_FOR_BROADCAST,
                broker.clock.monotonic_ms(),
            )
        answer = self._answer_of(pull, result, code, suggested, remark)
        return answer if result.fetch is None else self._fetched(result.fetch, answer)

    def _broadcaster(self, header: PullMessage, call: PullCall) -> str | None:
        """Client id if the pull is one of a broadcasting group's clients, or of a proxy for one."""
        broker = self._broker
        if not broker.settings.broker.enable_broadcast_offset_store:
            return None
        if header.request_source == PROXY_FOR_BROADCAST:
            return header.proxy_froward_client_id
        group = broker.tables.consumers.group(header.consumer_group)
        if group is None or group.message_model is not MessageModel.BROADCASTING:
            return None
        if group.consume_type is not ConsumeType.PASSIVELY:
            return None
        member = group.members.get(call.client)  # type: ignore[call-overload]
        return None if member is None else member.client_id

    def _broadcast_offset(self, header: PullMessage, client_id: str) -> int | None:
        """Where the client of a broadcasting group goes on; None: at the offset of the pull."""
        tables, topic, queue_id = self._broker.tables, header.topic, header.queue_id
        first = tables.broadcast.first_offset(
            topic,
            header.consumer_group,
            queue_id,
            header.queue_offset,
            client_id,
            header.request_source == PROXY_FOR_BROADCAST,
        )
        if first is None or first >= 0:
            return first
        committed = tables.offsets.query(broadcast_group(header.consumer_group), topic, queue_id)
        if committed >= 0:
            return committed
        bounds = self._broker.store.queue_bounds(topic, queue_id)
        return 0 if bounds.min_offset <= 0 else bounds.max_offset

    async def _fetched(self, fetch: Callable[[], None], answer: PullAnswer) -> PullAnswer:
        """`answer` once its records are in memory. Otherwise the write to the socket would wait for the disk
        and block all clients, and an unreadable disk would kill the process (SIGBUS)."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._broker.readers, fetch)
        except OSError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the messages cannot be read: {error}") from error
        return answer

    # -- long polling

    def on_visible(self, queues: Iterable[tuple[QueueKey, int]]) -> None:
        """These queues have grown to the given max offsets; called at most once per loop turn."""
        if self._held:
            for held in self._held.queues_grown(queues):
                self._retry(held)

    def release(self, topic: str) -> None:
        """Answer the held pulls of a topic with the current state: its queues may be elsewhere now."""
        for held in self._held.release(topic):
            self._answer(held.pull)

    def release_all(self) -> None:
        """Answer every held pull with the current state: the role changes, or the broker stops."""
        for held in self._held.release_all():
            self._answer(held.pull)
        self._alarm.cancel()

    def _hold(self, pull: Pull) -> None:
        header = pull.header
        config = self._broker.settings.broker
        wait_ms = (
            header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
        )
        deadline = self._broker.clock.monotonic_ms() + wait_ms
        self._held.hold((header.topic, header.queue_id), header.queue_offset, deadline, pull)
        self._alarm.arm()

    def _on_deadline(self, now_ms: int) -> None:
        for held in self._held.expire(now_ms):
            self._answer(held.pull)

    def _retry(self, held: HeldPull[Pull]) -> None:
        pull = held.pull
        result = self._read_held(pull)
        if result is None:
            return
        if result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset > held.queue_offset:
            # The filter accepts none of the new messages: hold the pull again behind them. RocketMQ applies
            # the filter before it wakes a pull, with the same effect.
            pull.header.queue_offset = result.next_offset
            self._held.hold(held.queue, result.next_offset, held.deadline_ms, pull)
            self._alarm.arm()
            return
        pull.call.answer(self._answer_of(pull, result, *self._outcome(pull, result), result.status.name))

    def _answer(self, pull: Pull) -> None:
        result = self._read_held(pull)
        if result is not None:
            pull.call.answer(self._answer_of(pull, result, *self._outcome(pull, result), result.status.name))

    def _read_held(self, pull: Pull) -> GetResult | None:
        """The result for a held pull; None if its caller no longer waits, or the read failed and was
        answered."""
        if pull.call.finished:
            return None
        try:
            return self._read(pull)
        except Exception as error:
            log.exception("a held pull failed")
            pull.call.fail(MQError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))
            return None

    # -- reading

    def _read(self, pull: Pull) -> GetResult:
        header = pull.header
        asked = header.max_msg_bytes
        return self._broker.store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            MAX_PULL_BYTES if asked is None or asked <= 0 else min(asked, MAX_PULL_BYTES),
            pull.message_filter,
        )

    def _outcome(self, pull: Pull, result: GetResult, *, reset: bool = False) -> tuple[ResponseCode, int]:
        """Code of the answer, and the broker id that the consumer should pull from next. Sets `next_offset`
        back to the offset of the pull where only a master may correct it. `reset`: an operator moved the
        consumer to `next_offset`."""
        config = self._broker.settings.broker
        group = pull.group
        code = _CODES.get(result.status)
        if code is None:
            code = ResponseCode.PULL_OFFSET_MOVED if pull.header.queue_offset else ResponseCode.PULL_NOT_FOUND
        suggested = MASTER_ID
        if config.slave_read_enable:
            suggested = group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id
        role = self._broker.role
        if role.is_master:
            return code, suggested
        master_is_there = not role.is_acting and self._master_is_there()
        if code == ResponseCode.PULL_OFFSET_MOVED and not config.offset_check_in_slave:
            if result.status in _BEYOND_END:
                # A slave may be behind its master: the consumer waits, or asks the master.
                result.next_offset = pull.header.queue_offset
                code = ResponseCode.PULL_NOT_FOUND
            elif not role.is_acting:
                suggested, code = group.broker_id, ResponseCode.PULL_RETRY_IMMEDIATELY
                if master_is_there and not reset:
                    result.next_offset = pull.header.queue_offset
        if master_is_there and not result.suggest_slave:
            suggested = MASTER_ID
            if result.status is not GetStatus.FOUND:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested

    def _master_is_there(self) -> bool:
        """RocketMQ's slave also sends consumers to a master that is gone: they come back at once, and pull
        without a pause. Here such a pull waits for messages as at a master."""
        replication = self._broker.replication
        linked = replication is None or replication.following
        return linked and self._broker.role.master_address is not None

    def _answer_of(
        self, pull: Pull, result: GetResult, code: ResponseCode, suggested: int, remark: str
    ) -> PullAnswer:
        header = pull.header
        if code == ResponseCode.PULL_OFFSET_MOVED:
            log.info(
                "offset corrected topic=%s queue=%d group=%s from=%d to=%d (%s)",
                header.topic,
                header.queue_id,
                header.consumer_group,
                header.queue_offset,
                result.next_offset,
                remark,
            )
        self._broker.stats.count_get(header.consumer_group, header.topic, result.count, result.size)
        return PullAnswer(
            PullMessageResponse(
                suggest_which_broker_id=suggested,
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                # Beyond messages that are not confirmed yet: they are no end of a part of a static topic.
                max_offset=max(result.max_offset, result.log_max_offset),
                topic_sys_flag=pull.topic.topic_sys_flag,
                group_sys_flag=pull.group.group_sys_flag,
            ),
            result.buffers if code == ResponseCode.SUCCESS else (),
            int(code),
            remark,
        )

    def _commit(self, pull: Pull, result: GetResult) -> None:
        header = pull.header
        offsets = self._broker.tables.offsets
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets.commit_pulled(group, topic, queue_id, result.next_offset)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            offsets.commit(group, topic, queue_id, header.commit_offset, pull.call.peer)

    # -- checks

    def _check(self, header: PullMessage, call: PullCall) -> Pull:
        broker = self._broker
        config = broker.settings.broker
        ip = broker.address.rpartition(":")[0]
        if config.broker_permission & Perm.READ == 0:
            raise _forbidden(Forbidden.BROKER, f"the broker[{ip}] pulling message is forbidden")
        if isinstance(header, LitePullMessage) and not config.lite_pull_message_enable:
            raise _forbidden(Forbidden.BROKER, f"the broker[{ip}] for lite pull consumer is forbidden")
        group = broker.tables.subscriptions.get_or_create(header.consumer_group)
        if group is None:
            raise MQError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise _forbidden(Forbidden.GROUP, f"subscription group no permission, {header.consumer_group}")
        topic = broker.tables.topics.get(header.topic)
        if topic is None:
            raise MQError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {FAQ}"
            )
        if topic.perm & Perm.READ == 0:
            raise _forbidden(Forbidden.TOPIC, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise MQError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{call.peer}]",
            )
        if config.reject_pull_consumer_enable:
            self._check_push(call, header.consumer_group)
        subscription = self._subscription(header, group)
        if is_tag_type(subscription.expression_type):
            return Pull(call, header, topic, group, filter_of(subscription))
        return Pull(call, header, topic, group, self._filter_by_properties(header, subscription))

    def _filter_by_properties(
        self, header: PullMessage, subscription: SubscriptionData
    ) -> MessageFilter | None:
        """The filter of a subscription that is not by tags."""
        broker = self._broker
        if not broker.settings.broker.enable_property_filter:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}",
            )
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            try:
                return filter_of(subscription)
            except ValueError as error:
                raise MQError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
        known = broker.tables.filters.get(header.topic, header.consumer_group)
        if known is None:
            raise MQError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if known.data.client_version < header.sub_version:
            raise MQError(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        return SqlFilter(known.matches, known.weight)

    def _check_push(self, call: PullCall, name: str) -> None:
        """With rejectPullConsumerEnable only members of push groups and the system's groups may pull."""
        known = self._broker.tables.consumers.group(name)
        pushes = known is not None and known.consume_type is not ConsumeType.ACTIVELY
        member = known is not None and call.client in known.members
        if not (pushes or member or name in PULLING_GROUPS):
            raise MQError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist, or the pull consumer is rejected by server.",
            )

    def _subscription(self, header: PullMessage, group: SubscriptionGroupConfig) -> SubscriptionData:
        broker = self._broker
        name = header.consumer_group
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            try:
                subscription = subscription_of(
                    header.topic, header.subscription, header.expression_type, broker.clock.now_ms()
                )
            except ValueError:
                raise MQError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from None
            broker.tables.consumers.remember(name, subscription, ConsumeType.PASSIVELY)
            return subscription
        connected = broker.tables.consumers.group(name)
        if connected is None:
            raise MQError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not group.consume_broadcast_enable and connected.message_model == MessageModel.BROADCASTING:
            raise _forbidden(
                Forbidden.BROADCASTING_DISABLE, f"the consumer group[{name}] can not consume by broadcast way"
            )
        if broker.tables.subscriptions.forbidden(name, header.topic):
            raise _forbidden(
                Forbidden.SUBSCRIPTION, f"the consumer group[{name}] is forbidden for topic[{header.topic}]"
            )
        known = connected.subscriptions.get(header.topic)
        if known is None:
            raise MQError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if known.sub_version < header.sub_version:
            raise MQError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return known


def _forbidden(kind: int, remark: str) -> MQError:
    return MQError(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})
