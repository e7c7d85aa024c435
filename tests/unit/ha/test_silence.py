"""When the silence of the other end of a link is unusual."""

from __future__ import annotations

import pytest

from batonmq.ha.autoswitch.core import LogBounds, MasterSession, SlaveSession
from batonmq.ha.autoswitch.epochs import EpochCache
from batonmq.ha.config import HAConfig
from batonmq.ha.silence import BEAT_WITHIN_MS, WINDOW_MS, LinkSilence
from batonmq.protocol.ha_frames import EpochStart

LEAST, MOST = 1_000, 2_500


def beating(silence: LinkSilence, now_ms: int, until_ms: int, step_ms: int = 200) -> int:
    """Heartbeats from now on; the time of the last one."""
    while now_ms + step_ms <= until_ms:
        now_ms += step_ms
        silence.received(now_ms, heartbeat=True)
    return now_ms


def limit(silence: LinkSilence, now_ms: int) -> int:
    """From when on silence is unusual, ms after `now_ms`."""
    return next(ms for ms in range(0, 10_000, 50) if silence.unusual(now_ms + ms, LEAST, MOST))


def test_silence_of_a_punctual_end_is_unusual_at_once() -> None:
    silence = LinkSilence(0)
    assert limit(silence, beating(silence, 0, 5_000)) == LEAST + 50


@pytest.mark.parametrize(("gap_ms", "limit_ms"), [(400, 1_050), (600, 1_450), (900, 2_050), (5_000, 2_550)])
def test_an_end_that_was_late_is_given_longer(gap_ms: int, limit_ms: int) -> None:
    silence = LinkSilence(0)
    now_ms = beating(silence, 0, 2_000) + gap_ms
    silence.received(now_ms, heartbeat=False)
    assert limit(silence, now_ms) == limit_ms


def test_a_late_heartbeat_is_forgotten_after_two_windows() -> None:
    silence = LinkSilence(0)
    now_ms = beating(silence, 0, 2_000) + 900
    silence.received(now_ms, heartbeat=True)
    now_ms = beating(silence, now_ms, now_ms + WINDOW_MS // 2)
    assert limit(silence, now_ms) > LEAST + 50
    now_ms = beating(silence, now_ms, now_ms + 2 * WINDOW_MS)
    assert limit(silence, now_ms) == LEAST + 50


def test_an_end_that_seldom_sends_heartbeats_is_known_by_it() -> None:
    java = LinkSilence(0)
    for now_ms in range(5_000, 60_000, 5_000):
        java.received(now_ms, heartbeat=True)
    assert not java.beats
    java.received(now_ms + 10, heartbeat=False)
    assert not java.beats, "data says nothing about heartbeats"
    java.received(now_ms + 10 + BEAT_WITHIN_MS - 1, heartbeat=True)
    assert java.beats


def test_what_was_not_read_by_choice_is_no_silence() -> None:
    silence = LinkSilence(0)
    now_ms = beating(silence, 0, 2_000)
    silence.excuse(now_ms + 8_000)
    assert silence.silent_ms(now_ms + 8_100) == 100
    assert limit(silence, now_ms + 8_000) == LEAST + 50


@pytest.mark.parametrize(("interval_ms", "beat_ms"), [(5_000, 200), (200, 200), (50, 50)])
def test_links_carry_heartbeats_often_whatever_the_key_says(interval_ms: int, beat_ms: int) -> None:
    assert HAConfig(ha_send_heartbeat_interval=interval_ms).beat_ms == beat_ms


# -- on a link ---------------------------------------------------------------------------------------------

LAG = 2_000


class Linked:
    """A master with 100 bytes and a slave that follows it, both idle."""

    def __init__(self, heartbeat_ms: int) -> None:
        epochs = [EpochStart(1, 0)]
        self.now_ms, self.log = 0, LogBounds(0, 100, 100, 1_000)
        self.master = MasterSession(
            EpochCache(epochs), local_id=1, heartbeat_ms=heartbeat_ms, timeout_ms=20_000, now_ms=0
        )
        self.slave = SlaveSession(
            EpochCache(epochs), 2, heartbeat_ms=heartbeat_ms, timeout_ms=20_000, now_ms=0
        )
        self.to_slave(self.master.receive(self.slave.open(), self.log, 0))
        self.to_master(self.slave.ack(100, 0))

    def to_slave(self, data: bytes) -> None:
        if data:
            self.slave.receive(data, self.log, self.now_ms)

    def to_master(self, data: bytes) -> None:
        if data:
            self.to_slave(self.master.receive(data, self.log, self.now_ms))

    def idle(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.now_ms += 100
            self.to_slave(self.master.heartbeat(self.log, self.now_ms))
            self.to_master(self.slave.heartbeat(self.now_ms))

    @property
    def slave_silent(self) -> bool:
        return self.master.unusually_silent(self.now_ms, LAG)


def test_an_idle_link_shows_within_the_limits_that_an_end_is_silent() -> None:
    link = Linked(200)
    link.idle(10_000)
    assert link.slave.silence.beats and link.master.silence.beats
    assert not link.slave_silent
    link.now_ms += 1_500
    assert not link.slave_silent
    link.now_ms += 300
    assert link.slave_silent
    assert link.slave.silence.unusual(link.now_ms, LEAST, MOST)
    link.to_master(link.slave.heartbeat(link.now_ms))
    assert not link.slave_silent, "it is back"


def test_an_idle_java_slave_is_not_silent() -> None:
    link = Linked(5_000)
    link.idle(30_000)
    link.now_ms += 4_900
    assert not link.slave_silent


def test_a_java_slave_that_acknowledges_nothing_is_silent_from_then_on() -> None:
    link = Linked(5_000)
    link.idle(4_000)
    link.now_ms += 600
    link.log = LogBounds(0, 200, 100, 1_000)
    batch = link.master.next_batch(link.log, 1_000)
    assert batch is not None
    link.master.frame(batch, 100, link.log, link.now_ms)
    assert not link.slave_silent, "nothing was due before"
    link.now_ms += 1_400
    assert not link.slave_silent
    link.now_ms += 200
    assert link.slave_silent


@pytest.mark.parametrize("end", ["master", "slave"])
def test_a_slow_handshake_is_no_reason_to_give_an_end_longer(end: str) -> None:
    epochs = [EpochStart(1, 0)]
    log = LogBounds(0, 100, 100, 1_000)
    master = MasterSession(EpochCache(epochs), local_id=1, heartbeat_ms=200, timeout_ms=20_000, now_ms=0)
    slave = SlaveSession(EpochCache(epochs), 2, heartbeat_ms=200, timeout_ms=20_000, now_ms=0)
    answer = master.receive(slave.open(), log, 2_500)
    slave.receive(answer, log, 5_000)
    slave.receive(master.receive(slave.ack(100, 5_000), log, 7_500), log, 7_500)
    for now_ms in range(7_600, 12_000, 100):
        slave.receive(master.heartbeat(log, now_ms), log, now_ms)
        master.receive(slave.heartbeat(now_ms), log, now_ms)
    silence = (slave if end == "master" else master).silence
    assert silence.beats and limit(silence, now_ms) <= LEAST + 100
