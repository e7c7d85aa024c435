"""The part for delayed messages (`messageDelayLevel`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from batonmq.broker.config import parse_delay_levels
from batonmq.broker.delay.core import delay_level_of, to_schedule_topic
from batonmq.broker.delay.schedule import DelaySchedule
from batonmq.broker.delay.unit_codes import delay_unit_codes
from batonmq.broker.part import Part
from batonmq.broker.tables.persistence import Master, Member, Table
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import GetAllDelayOffset
from batonmq.protocol.message.properties import PROPERTY_DELAY_LEVEL
from batonmq.protocol.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.protocol.message.record import StoredMessage
    from batonmq.store.policy import UnitCode
    from batonmq.store.results import QueueKey


class DelayPart(Part):
    @classmethod
    def unit_codes(cls, config: BrokerConfig) -> Mapping[str, UnitCode]:
        return delay_unit_codes(parse_delay_levels(config.message_delay_level))

    def __init__(self, broker: Broker) -> None:
        self._settings = broker.settings
        delays_ms = parse_delay_levels(broker.settings.broker.message_delay_level)
        self.schedule = DelaySchedule(
            delays_ms,
            broker.store,
            broker.appender,
            broker.role,
            broker.clock,
            lambda: self._settings.broker.delay_offset_update_version_step,
            broker.readers,
        )
        self._store = broker.store
        broker.redirects.add(_DelayedMessages(len(delays_ms)))
        broker.runtime_info.append(self._runtime_info)

    def tables(self) -> Sequence[Table]:
        schedule, settings = self.schedule, self._settings
        return (
            Table(
                name="delayOffset",
                encode=schedule.encode,
                restore=schedule.restore,
                interval_ms=lambda: settings.broker.flush_delay_offset_interval,
                take_changed=schedule.take_changed,
                copy=self._copy,
                take_back=self._take_back,
            ),
        )

    def handlers(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(GetAllDelayOffset, self._offsets)

    def role_ending(self) -> None:
        self.schedule.stop()

    def role_changed(self, role: RoleState) -> None:
        if role.serves:
            self.schedule.start()

    def records_visible(self, grown: Sequence[tuple[QueueKey, int]]) -> None:
        self.schedule.on_visible(grown)

    def _runtime_info(self) -> Mapping[str, object]:
        """How far each level is, and the end of its queue, as RocketMQ's tools read them."""
        figures: dict[str, object] = {}
        for level, offset in self.schedule.offsets.items():
            end = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1).max_offset
            figures[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return figures

    def _offsets(self, request: Request, header: GetAllDelayOffset) -> Reply:
        return Reply(body=self.schedule.encode())

    async def _take_back(self, member: Member) -> bool:
        data = await member.fetch(GetAllDelayOffset())
        return bool(data) and self.schedule.take_back(data)

    async def _copy(self, master: Master) -> None:
        data = await master.fetch(GetAllDelayOffset())
        if data:
            self.schedule.replace(data)


class _DelayedMessages:
    """Messages with a delay level (`Redirect`)."""

    marks: tuple[bytes, ...] = (PROPERTY_DELAY_LEVEL.encode(),)

    def __init__(self, max_level: int) -> None:
        self._max_level = max_level

    def redirect(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        try:
            level = delay_level_of(properties)
        except ValueError:
            text = properties[PROPERTY_DELAY_LEVEL]
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL, f"property {PROPERTY_DELAY_LEVEL}={text} is not a delay level"
            ) from None
        return to_schedule_topic(message, level, self._max_level) if level > 0 else None
