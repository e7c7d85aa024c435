"""The part for messages with an exact time of delivery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.part import Part
from batonmq.broker.tables.persistence import Master, Member, Table
from batonmq.broker.timer import layout
from batonmq.broker.timer.core import wheel_of
from batonmq.broker.timer.counts import TimerCounts
from batonmq.broker.timer.handlers import TimerHandlers
from batonmq.broker.timer.metrics import METRICS, TimerMetrics
from batonmq.broker.timer.redirect import TimedMessages
from batonmq.broker.timer.service import TimerService
from batonmq.broker.timer.state import TimerState
from batonmq.broker.timer.timing import TimingCounts
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint, GetTimerMetrics
from batonmq.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.common.metrics import Metric, Source
    from batonmq.net.dispatch import Dispatcher
    from batonmq.store.results import QueueKey

_QUEUE = (TIMER_TOPIC, 0)


class TimerPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = METRICS

    def __init__(self, broker: Broker) -> None:
        config = broker.settings.broker
        self._broker = broker
        self._enabled = config.timer_wheel_enable
        wheel = wheel_of(config.timer_precision_ms, config.timer_roll_window_slot, layout.SLOTS)
        self._timing = TimingCounts()
        self.state = TimerState(broker, wheel)
        counts = TimerCounts(self._timing, broker.clock.now_ms)
        self.service = TimerService(self.state, counts)
        self._metrics = TimerMetrics(self.state, counts)
        broker.redirects.add(TimedMessages(self.state))
        broker.runtime_info.append(self._metrics.runtime_info)

    def tables(self) -> Sequence[Table]:
        if not self._enabled:
            return ()
        service, timing, settings = self.service, self._timing, self._broker.settings
        return (
            Table(
                name="timercheck",
                file="timercheck",
                encode=service.encode,
                restore=service.restore,
                interval_ms=lambda: settings.broker.timer_flush_interval_ms,
                take_changed=service.take_changed,
                copy=self._copy_checkpoint,
                take_back=self._take_back_checkpoint,
            ),
            Table(
                name="timermetrics",
                file="timermetrics",
                encode=timing.encode,
                restore=timing.restore,
                interval_ms=lambda: settings.broker.timer_flush_interval_ms,
                take_changed=timing.take_changed,
                copy=self._copy_metrics,
            ),
        )

    def handlers(self, dispatcher: Dispatcher) -> None:
        TimerHandlers(self._broker, self.service, self._timing).register(dispatcher)

    def metrics(self) -> Mapping[Metric, Source]:
        return self._metrics.sources()

    async def start(self) -> None:
        if self._enabled:
            await self.service.open()

    async def stop(self) -> None:
        await self.service.close(failed=self._broker.store.failure is not None)

    def role_ending(self) -> None:
        self.service.rest()

    def role_changed(self, role: RoleState) -> None:
        if role.serves:
            self.service.lead()
        else:
            self.service.follow()

    def records_visible(self, grown: Sequence[tuple[QueueKey, int]]) -> None:
        for queue, _ in grown:
            if queue == _QUEUE:
                self.service.on_visible()
                return

    async def _copy_checkpoint(self, master: Master) -> None:
        try:
            data = await master.fetch(GetTimerCheckPoint())
        except MQError:
            return  # its timer wheel is off
        self.service.replace(data)

    async def _take_back_checkpoint(self, member: Member) -> bool:
        try:
            data = await member.fetch(GetTimerCheckPoint())
        except MQError:
            return False  # its timer wheel is off
        if not self.service.take_back(data, exact=member.announces_changes):
            return False
        await self.service.flush()
        return True

    async def _copy_metrics(self, master: Master) -> None:
        try:
            data = await master.fetch(GetTimerMetrics())
        except MQError:
            return
        self._timing.replace(data)
