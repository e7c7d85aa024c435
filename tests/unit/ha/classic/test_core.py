"""Both ends of a link against each other and against hostile input, without sockets."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.ha.classic.copies import Held, acked_by, in_sync
from batonmq.ha.classic.core import Append, Compare, LogBounds, MasterSession, OtherHistory, SlaveSession
from batonmq.protocol.ha_classic_frames import ReportReader, TransferReader, report, transfer_header
from batonmq.protocol.ha_frames import HAFrameError

FILE = 64


def master_session(**options) -> MasterSession:
    values = {"introduces": False, "whole_log": False, "heartbeat_ms": 5_000, "timeout_ms": 20_000}
    return MasterSession(now_ms=0, **{**values, **options})


def slave_session(compare_from: int = 0, end: int = 0) -> SlaveSession:
    return SlaveSession(
        compare_from=compare_from,
        end=end,
        heartbeat_ms=5_000,
        timeout_ms=20_000,
        patience_ms=10_000,
        now_ms=0,
    )


def test_the_bytes_are_those_of_rocketmq():
    assert report(0x0102030405060708) == bytes(range(1, 9))
    assert transfer_header(0x0102030405060708, 0x090A0B0C) == bytes(range(1, 13))


def test_a_slave_reports_compares_appends_and_reports_again():
    slave = slave_session(10, 16)
    assert slave.open() == report(10)
    effects = slave.receive(transfer_header(10, 9) + b"abcdefXYZ", 1)
    assert [(type(each), each.offset, bytes(each.data)) for each in effects] == [
        (Compare, 10, b"abcdef"),
        (Append, 16, b"XYZ"),
    ]
    assert slave.transferring
    assert slave.report(19, 2) == report(19)
    assert slave.report(19, 3) == b""


def test_a_slave_that_compares_says_nothing_more():
    slave = slave_session(10, 16)
    slave.receive(transfer_header(10, 6) + b"abc", 1)
    assert not slave.transferring
    assert slave.report(13, 2) == slave.heartbeat(9_000) == b""
    slave.receive(b"def", 3)
    assert slave.report(16, 4) == report(16)
    assert slave.heartbeat(5_003) == b""
    assert slave.heartbeat(5_004) == report(16)


def test_a_master_that_sends_nothing_to_compare_is_given_up():
    slave = slave_session(10, 16)
    slave.receive(transfer_header(10, 0), 9_000)
    slave.check_patience(10_000)
    with pytest.raises(OtherHistory, match="does not send bytes 10 to 16"):
        slave.check_patience(10_001)
    slave_session().check_patience(100_000)


def test_an_empty_slave_takes_the_begin_that_the_master_chooses():
    slave = slave_session()
    assert slave.open() == report(0)
    assert slave.receive(transfer_header(128, 0), 1) == []
    (effect,) = slave.receive(transfer_header(128, 3) + b"abc", 1)
    assert (type(effect), effect.offset, bytes(effect.data)) == (Append, 128, b"abc")
    with pytest.raises(HAFrameError):
        slave.receive(transfer_header(0, 1) + b"x", 1)


@pytest.mark.parametrize("offset", [0, 5, 9, 11, 1 << 40])
def test_a_slave_takes_no_other_offset_than_the_next(offset):
    with pytest.raises(HAFrameError, match="the log goes on at 10"):
        slave_session(10, 16).receive(transfer_header(offset, 1) + b"x", 1)


@pytest.mark.parametrize(
    ("whole", "low", "end", "begin"),
    [(False, 0, 300, 256), (False, 0, 60, 0), (False, 320, 330, 320), (True, 0, 300, 0), (True, 64, 300, 64)],
)
def test_where_an_empty_slave_begins(whole, low, end, begin):
    master = master_session(whole_log=whole)
    master.receive(report(0), LogBounds(low, end, FILE), 1)
    assert master.next_offset == begin
    assert master.sendable(LogBounds(low, end, FILE)) == end - begin


def test_the_first_report_confirms_nothing_and_the_second_does():
    master, log = master_session(), LogBounds(0, 100, FILE)
    master.receive(report(70), log, 1)
    assert (master.ack_offset, master.next_offset, master.confirmed) == (70, 70, False)
    master.receive(report(70), log, 2)
    assert master.confirmed


def test_a_slave_without_a_log_holds_what_it_reports_at_once():
    master = master_session()
    master.receive(report(0), LogBounds(0, 0, FILE), 1)
    assert (master.ack_offset, master.confirmed) == (0, True)


@pytest.mark.parametrize(
    ("reports", "log", "error"),
    [
        ([101], LogBounds(0, 100, FILE), OtherHistory),
        ([10], LogBounds(64, 100, FILE), OtherHistory),
        ([50, 51], LogBounds(0, 100, FILE), HAFrameError),
        ([50, 49], LogBounds(0, 100, FILE), HAFrameError),
        ([-1], LogBounds(0, 100, FILE), HAFrameError),
    ],
)
def test_reports_that_no_slave_makes_end_the_link(reports, log, error):
    master = master_session()
    with pytest.raises(error):
        master.receive(b"".join(struct_report(each) for each in reports), log, 1)


def struct_report(offset: int) -> bytes:
    return offset.to_bytes(8, "big", signed=True)


def test_files_deleted_under_a_slow_slave_end_the_link():
    master = master_session()
    master.receive(report(10), LogBounds(0, 100, FILE), 1)
    with pytest.raises(HAFrameError, match="deleted up to 64"):
        master.sendable(LogBounds(64, 100, FILE))


def test_heartbeats_and_silence():
    master = master_session()
    assert master.heartbeat(9_999) == b"", "nothing is known of the slave yet"
    master.receive(report(7), LogBounds(0, 100, FILE), 1)
    assert master.heartbeat(5_000) == transfer_header(7, 0)
    assert master.heartbeat(6_000) == b""
    assert not master.expired(20_001)
    assert master.expired(20_002)
    assert slave_session().expired(20_001)


def test_a_slave_with_a_secret_says_its_id_first():
    master = master_session(introduces=True)
    master.receive(report(3) + report(50), LogBounds(0, 100, FILE), 1)
    assert (master.slave_id, master.next_offset) == (3, 50)


@given(st.integers(0, 2**32), st.integers(0, 400), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_the_stream_gives_the_same_log(seed, have, piece):
    rng = random.Random(seed)
    data = rng.randbytes(400)
    local = bytearray(data[:have])
    compare_from = rng.randint(1, have - 1) if have > 1 else 0
    if have <= 1:
        local.clear()
    slave = slave_session(compare_from, len(local))
    master, log = master_session(whole_log=True), LogBounds(0, len(data), FILE)
    master.receive(slave.open(), log, 0)
    stream = b""
    while (left := master.sendable(log)) > 0:
        begin, size = master.next_offset, min(left, rng.randint(1, 90))
        stream += master.frame(size, 0) + data[begin : begin + size]
        if rng.random() < 0.2:
            stream += transfer_header(master.next_offset, 0)
    for at in range(0, len(stream), piece):
        for effect in slave.receive(stream[at : at + piece], 0):
            if isinstance(effect, Compare):
                assert local[effect.offset : effect.offset + len(effect.data)] == effect.data
            else:
                assert effect.offset == len(local)
                local += effect.data
        master.receive(slave.report(len(local), 0), log, 0)
    assert bytes(local) == data
    assert master.ack_offset == len(data)


@given(st.lists(st.binary(max_size=40), max_size=20))
@settings(max_examples=100, deadline=None)
def test_no_bytes_break_the_readers(pieces):
    for reader in (ReportReader(), TransferReader()):
        try:
            for each in pieces:
                reader.feed(each)
                assert len(reader._rest) < 12
        except HAFrameError:
            pass


def test_copies_are_counted_for_what_they_hold():
    assert acked_by(1, 100, []) == 100
    assert acked_by(2, 100, []) == -1
    assert acked_by(2, 100, [Held(60), Held(80)]) == 80
    assert acked_by(3, 100, [Held(60), Held(80)]) == 60
    assert acked_by(4, 100, [Held(60), Held(80)]) == -1
    assert acked_by(2, 100, [Held(-1)]) == -1
    assert acked_by(2, 50, [Held(60)]) == 50


def test_a_second_link_counts_above_what_the_first_was_sent():
    former, later = Held(70), Held(75, counts_above=80)
    assert acked_by(2, 100, [former, later]) == 70
    assert acked_by(3, 100, [former, later]) == -1
    assert acked_by(2, 100, [former, Held(85, counts_above=80)]) == 85
    assert acked_by(3, 100, [Held(90), Held(85, counts_above=80)]) == 85, "they are two slaves of one host"


def test_in_sync_is_a_gap_of_bytes():
    assert in_sync(100, 100, 1)
    assert in_sync(100, 91, 10)
    assert not in_sync(100, 90, 10)
    assert not in_sync(5, -1, 10), "it has reported nothing; RocketMQ counts it"
