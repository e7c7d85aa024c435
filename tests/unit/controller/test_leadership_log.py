"""Which elections a controller logs, and how loud."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from batonmq.common.running_time import RunningTime
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Election, Outcome
from batonmq.controller.leadership import FAILED_AGAIN_MS, Leadership

FAILED = Election("c", "s", "broker", "no-master", 1, None, 3, 4, (1,), (2,), 2, False)
ELECTED = Election("c", "s", "broker", "new-master", 1, 2, 4, 5, (1, 2), (2,), 2, False)


class Clock:
    now = 0

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


def leadership(clock: Clock) -> Leadership:
    made = Leadership(
        ControllerConfig(),
        "n0",
        cast("Any", clock),
        RunningTime(cast("Any", clock)),
        cast("Any", SimpleNamespace(broker_sets={})),
        cast("Any", None),
        lambda election: None,
    )
    sink = SimpleNamespace(write=lambda *_: None)
    made.start(cast("Any", None), cast("Any", None), cast("Any", None), cast("Any", sink))
    return made


def test_a_set_that_cannot_elect_is_a_warning_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    made = leadership(clock)
    caplog.set_level(logging.INFO)

    def lines(*elections: Election) -> int:
        caplog.clear()
        made.decided(Outcome(effects=elections))
        return len(caplog.records)

    assert [lines(FAILED), lines(FAILED), lines(FAILED, FAILED)] == [1, 0, 0]
    assert lines(msgspec.structs.replace(FAILED, broker_name="t")) == 1, "another broker set"
    changed = msgspec.structs.replace(FAILED, alive=(2, 3))
    assert [lines(changed), lines(changed)] == [1, 0], "another replica lives"
    clock.now = FAILED_AGAIN_MS
    assert lines(changed) == 1
    assert lines(ELECTED, FAILED) == 2, "a success, then the next failure"
