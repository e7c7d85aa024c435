"""Sends timed messages to the timer topic (`Redirect`). Source: RocketMQ's `HookUtils.transformTimerMessage`
and `TimerMessageStore.isReject`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.broker.timer.core import deliver_at_ms, is_timed, slot_of, to_timer_topic
from batonmq.common.config import INT_MAX
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.properties import PROPERTY_TIMER_DELETE_UNIQUE_KEY, TIMER_PREFIX

if TYPE_CHECKING:
    from batonmq.broker.timer.state import TimerState
    from batonmq.protocol.message.record import StoredMessage

_TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_PLAIN_OR_COMMITTED: Final = (0, MessageSysFlag.TRANSACTION_COMMIT)


class TimedMessages:
    """Messages with TIMER_DELIVER_MS, TIMER_DELAY_MS or TIMER_DELAY_SEC. Comes after the delay levels, which
    win."""

    marks: tuple[bytes, ...] = (TIMER_PREFIX.encode(),)

    def __init__(self, state: TimerState) -> None:
        self._state = state

    def redirect(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        if message.sys_flag & _TRANSACTION_MASK not in _PLAIN_OR_COMMITTED:
            return None
        if not is_timed(message.topic, properties):
            return None
        state = self._state
        config, now = state.broker.settings.broker, state.now_ms()
        if not config.timer_wheel_enable:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        try:
            deliver_ms = deliver_at_ms(properties, now)
        except ValueError:
            raise self._illegal() from None
        if deliver_ms <= now:
            if PROPERTY_TIMER_DELETE_UNIQUE_KEY in properties:
                raise self._illegal()
            return None
        if deliver_ms - now > config.timer_max_delay_sec * 1_000:
            raise self._illegal()
        slot_ms = slot_of(deliver_ms, state.wheel.precision_ms)
        if self._rejects(slot_ms, config.timer_congest_num_each_slot):
            raise self._congested()
        return to_timer_topic(message, properties, slot_ms)

    def _rejects(self, slot_ms: int, limit: int) -> bool:
        """Whether too many messages are due at this time already; between the limit and twice as many, some
        are refused at random."""
        state = self._state
        if limit == INT_MAX or not state.opened:
            return False
        slot = state.timers.wheel.get(slot_ms)
        number = 0 if slot is None else slot.number
        if number <= limit:
            return False
        return number >= 2 * limit or state.broker.rng.randrange(1_000) > 1_000 * (number - limit) / (
            limit + 0.1
        )

    def _illegal(self) -> MQError:
        most_ms = self._state.broker.settings.broker.timer_max_delay_sec * 1_000
        return MQError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {most_ms}ms "
            "(timerMaxDelaySec); or if set del msg, the delay time should be bigger than the current time",
        )

    def _congested(self) -> MQError:
        limit = self._state.broker.settings.broker.timer_congest_num_each_slot
        return MQError(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control, max num limit is {2 * limit} or the current value is "
            f"greater than {limit} and less than {2 * limit}, trigger random flow control",
        )
