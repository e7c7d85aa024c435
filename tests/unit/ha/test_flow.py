"""The rate of one link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.common.config import ConfigError, build
from batonmq.ha.config import HAConfig
from batonmq.ha.flow import BURST_S, PIECE_BYTES, FlowControl


@given(st.integers(64 * 1024, 1 << 30), st.integers(1, 300_000), st.integers(0, 50))
def test_a_greedy_sender_gets_the_rate_and_no_more(rate: int, most: int, late_ms: int) -> None:
    flow, now, sent = FlowControl(rate, 0), 0, 0
    while now < 3_000:
        allowed = flow.allowance(now)
        if not allowed:
            now += flow.wait_ms() + late_ms
            continue
        size = min(most, allowed)
        flow.sent(size)
        sent += size
        if size < allowed:
            now += 1  # the socket was full
    burst = max(rate * BURST_S, PIECE_BYTES)
    assert sent <= rate * (now / 1000) + burst
    if most >= burst and late_ms <= 20:  # later than that, a full bucket runs over
        assert sent >= rate * 2.8


def test_silence_is_not_saved_up_for_long() -> None:
    flow = FlowControl(1_000_000, 0)
    assert flow.allowance(0) == flow.allowance(60_000) == 100_000
    flow.sent(100_000)
    assert flow.allowance(60_000) == 0
    assert flow.wait_ms() == 4


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("maxHaTransferByteInSecond", "1000", "at least 65536"),
        ("haSecret", "short", "at least 16 characters"),
    ],
)
def test_bad_values_are_named_but_not_the_secret(key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        build({key: (value, "broker.conf")}, HAConfig)
    assert key in str(refused.value) and "short" not in str(refused.value)


def test_keys_without_meaning_say_why(caplog: pytest.LogCaptureFixture) -> None:
    build({"haMaxGapNotInSync": ("1", "broker.conf"), "haMaxGap": ("1", "broker.conf")}, HAConfig)
    first, second = caplog.messages
    assert (
        "haMaxGapNotInSync has no effect here: in controller mode haMaxTimeSlaveNotCatchup decides" in first
    )
    assert "unknown key haMaxGap is ignored" in second
