"""The rate of one link, and what may be under way on it."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.common.config import ConfigError
from batonmq.common.config_loader import build
from batonmq.ha.config import HAConfig
from batonmq.ha.flow import BURST_S, LEAST_WINDOW, PIECE_BYTES, FlowControl, Window


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
    build({"maxSlaveResendLength": ("1", "broker.conf"), "maxSlaveResend": ("1", "broker.conf")}, HAConfig)
    first, second = caplog.messages
    assert "maxSlaveResendLength has no effect here: a slave asks for what it misses" in first
    assert "unknown key maxSlaveResend is ignored" in second


def copied(
    window: Window,
    *,
    rate: int,
    delay_us: int,
    frame: int = 256 * 1024,
    seconds: float = 5.0,
    begin_us: int = 0,
) -> float:
    """Bytes a second through `window` to a slave that takes `rate` of them, `delay_us` there and back."""
    now = idle_at = begin_us
    sent = acked = begin_us * 1000  # beyond what a copy before has sent
    under_way: deque[tuple[int, int]] = deque()
    first = acked
    while now - begin_us < seconds * 1e6:
        while sent - acked < window.size:
            idle_at = max(now + delay_us // 2, idle_at) + frame * 1_000_000 // rate
            sent += frame
            window.sent(sent, acked, now)
            under_way.append((idle_at + delay_us // 2, sent))
        now, acked = under_way.popleft()
        window.acked(acked, now)
    return (acked - first) / ((now - begin_us) / 1e6)


@pytest.mark.parametrize("delay_us", [0, 100, 1_000, 10_000, 100_000])
@pytest.mark.parametrize("rate", [10_000_000, 300_000_000])
def test_a_line_is_filled_however_long_it_is(rate: int, delay_us: int) -> None:
    assert copied(Window(), rate=rate, delay_us=delay_us, seconds=20) > 0.7 * rate


def test_a_slave_next_door_is_not_sent_far_ahead() -> None:
    window = Window()
    copied(window, rate=300_000_000, delay_us=50)
    assert window.size <= 4 * LEAST_WINDOW


@pytest.mark.parametrize("later_us", [2_000, 20_000, 100_000])
def test_a_line_that_becomes_longer_is_filled_again(later_us: int) -> None:
    window = Window()
    copied(window, rate=300_000_000, delay_us=200)
    assert (
        copied(window, rate=300_000_000, delay_us=later_us, seconds=20, begin_us=5_000_000)
        > 0.6 * 300_000_000
    )


def test_one_slow_answer_does_not_close_the_window() -> None:
    window = Window()
    copied(window, rate=300_000_000, delay_us=20_000, seconds=1.5)
    before = window.size
    assert before > 2 * 300_000_000 * 0.02 * 0.9
    window.sent(10**12 + 1, 10**12, 1_600_000)
    window.acked(10**12 + 1, 1_900_000)
    assert window.size >= before * 7 // 8
    for n in range(100):
        window.sent(2 * 10**12 + n, 2 * 10**12 + n - 1, 1_900_000 + n * 500)
        window.acked(2 * 10**12 + n, 1_900_000 + (n + 1) * 500)
    assert window.size == LEAST_WINDOW
