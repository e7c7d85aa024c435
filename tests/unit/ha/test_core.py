"""Both ends of a link against each other and against hostile input, without sockets."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.ha.autoswitch.core import (
    Append,
    Confirm,
    Learn,
    LogBounds,
    MasterSession,
    SlaveSession,
    StartOver,
    Truncate,
    whole_records,
)
from batonmq.ha.autoswitch.epochs import EpochCache
from batonmq.protocol.ha_frames import (
    Ack,
    EpochStart,
    HAFrameError,
    MasterFrameReader,
    MasterHandshake,
    SlaveHandshake,
    Transfer,
)
from batonmq.protocol.message.record import StoredMessage, encode_blank, encode_record


class Log:
    """A log in memory: bytes from `base` on, and its epochs."""

    def __init__(self, data: bytes = b"", epochs=(), base: int = 0, file_size: int = 64) -> None:
        self.data, self.base, self.file_size, self.confirm = bytearray(data), base, file_size, 0
        self.epochs = EpochCache(EpochStart(*entry) for entry in epochs)

    @property
    def max(self) -> int:
        return self.base + len(self.data)

    def bounds(self) -> LogBounds:
        return LogBounds(self.base, self.max, self.confirm, self.file_size)

    def apply(self, effects) -> None:
        for effect in effects:
            match effect:
                case Truncate(offset):
                    assert self.base <= offset <= self.max
                    del self.data[offset - self.base :]
                    self.epochs.truncate_suffix(offset)
                case StartOver(offset):
                    self.data.clear()
                    self.base = offset
                    self.epochs.clear()
                case Learn(entries):
                    for epoch, start in entries:
                        assert start <= self.max
                        self.epochs.append(epoch, start)
                case Append(offset, data):
                    assert offset == self.max, "an append must continue the log"
                    self.data += data
                case Confirm(offset):
                    assert self.confirm < offset <= self.max
                    self.confirm = offset


def master_session(log: Log, now: int = 0) -> MasterSession:
    return MasterSession(log.epochs, heartbeat_ms=5000, timeout_ms=20000, now_ms=now)


def slave_session(log: Log, now: int = 0, **options) -> SlaveSession:
    return SlaveSession(log.epochs, 2, heartbeat_ms=5000, timeout_ms=20000, now_ms=now, **options)


def replicate(
    master: Log, slave: Log, *, batch: int = 16, cut=lambda data: [data], **options
) -> MasterSession:
    """Run a link until the slave has everything; `cut` splits what is sent into pieces."""
    ours, theirs = master_session(master), slave_session(slave, **options)
    to_master, to_slave = theirs.open(), b""
    for _ in range(10_000):
        for piece in cut(to_master):
            to_slave += ours.receive(piece, master.bounds(), 0)
        to_master = b""
        step = ours.next_batch(master.bounds(), batch)
        if step is not None:
            offset = step.offset - master.base
            data = bytes(master.data[offset : offset + step.max_bytes])
            segment = master.epochs.segment(step.offset)
            assert step.offset + len(data) <= segment.end_offset, "a batch must not cross an epoch"
            to_slave += ours.frame(step, len(data), master.bounds(), 0) + data
        to_slave += ours.heartbeat(master.bounds(), 0)
        if not to_slave:
            return ours
        for piece in cut(to_slave):
            slave.apply(theirs.receive(piece, slave.bounds(), 0))
            to_master += theirs.ack(theirs.position, 0)
        to_slave = b""
    raise AssertionError("the link never comes to rest")


def test_a_new_slave_gets_everything_and_all_epochs():
    master = Log(b"a" * 100 + b"b" * 50 + b"c" * 7, [(1, 0), (2, 100), (5, 150)])
    master.confirm = 120
    slave = Log()
    session = replicate(master, slave)
    assert slave.data == master.data
    assert slave.epochs.entries == master.epochs.entries
    assert slave.confirm == 120
    assert session.ack_offset == 157 == session.next_offset
    assert session.slave_id == 2


def test_a_former_master_loses_what_it_wrote_alone():
    master = Log(b"a" * 100 + b"c" * 50, [(1, 0), (3, 100)])
    slave = Log(b"a" * 100 + b"b" * 90, [(1, 0), (2, 100)])
    replicate(master, slave)
    assert slave.data == master.data
    assert slave.epochs.entries == master.epochs.entries


def test_a_tail_that_nobody_else_has_is_cut_even_below_the_masters_end():
    """The two ends say nothing: what counts is where the histories part."""
    master = Log(b"a" * 100 + b"c" * 90, [(1, 0), (3, 100)])
    slave = Log(b"a" * 100 + b"b" * 50, [(1, 0), (2, 100)])
    replicate(master, slave)
    assert slave.data == master.data
    assert slave.epochs.entries == master.epochs.entries


def test_a_term_without_data_leaves_no_trace():
    """RocketMQ keeps 2-100 here and both logs go on under epoch 2 with different bytes."""
    master = Log(b"a" * 100, [(1, 0), (2, 100)])
    master.epochs.append(3, 100)
    master.data += b"c" * 60
    slave = Log(b"a" * 100 + b"b" * 60, [(1, 0), (2, 100)])
    replicate(master, slave)
    assert slave.data == master.data


def test_logs_that_share_nothing_start_over():
    master = Log(b"c" * 60, [(2, 0)])
    slave = Log(b"a" * 100, [(1, 0)])
    replicate(master, slave)
    assert slave.data == master.data
    assert slave.epochs.entries == ((2, 0),)


def test_a_slave_that_ends_before_the_masters_first_byte_starts_over_there():
    master = Log(b"m" * 100, [(1, 0), (3, 150)], base=128)
    slave = Log(b"a" * 40, [(1, 0)])
    replicate(master, slave)
    assert (slave.base, slave.data) == (128, master.data)
    assert slave.epochs.entries == ((1, 0), (3, 150))


def test_sync_from_last_file_begins_at_the_last_file():
    master = Log(b"m" * 200, [(1, 0), (3, 150)])
    slave = Log()
    replicate(master, slave, sync_from_last_file=True)
    assert (slave.base, len(slave.data)) == (192, 8)
    assert slave.epochs.entries == ((3, 150),)
    behind = Log(b"m" * 20, [(1, 0)])
    replicate(master, behind, sync_from_last_file=True)
    assert behind.data == master.data, "a slave that has data goes on where it ends"


def test_an_idle_new_master_sends_its_epoch_at_once():
    master = Log(b"a" * 100, [(1, 0), (4, 100)])
    slave = Log(b"a" * 100, [(1, 0)])
    replicate(master, slave)
    assert slave.epochs.last_epoch == 4


def test_epochs_that_a_rocketmq_master_labels_ahead_are_learned():
    """It labels the last piece of an epoch with the next one: it moves on before it writes the header."""
    slave = Log()
    session = slave_session(slave)
    epochs = (EpochStart(1, 0), EpochStart(2, 10), EpochStart(3, 20))
    slave.apply(session.receive(MasterHandshake(30, 3, epochs).encode(), slave.bounds(), 0))
    session.ack(0, 0)
    for header, body in [
        (Transfer(10, 0, 2, 10, 0), b"a" * 10),
        (Transfer(10, 10, 3, 20, 0), b"b" * 10),
        (Transfer(10, 20, 3, 20, 0), b"c" * 10),
    ]:
        slave.apply(session.receive(header.encode() + body, slave.bounds(), 0))
    assert slave.epochs.entries == epochs


def test_the_slave_asks_even_an_empty_master():
    """RocketMQ's master begins only when it has an ack, also of 0."""
    slave = Log()
    session = slave_session(slave)
    assert session.receive(MasterHandshake(0, -1, ()).encode(), slave.bounds(), 0) == []
    assert session.ack(session.position, 0) == Ack(0).encode()
    assert session.receive(Transfer(0, -1, 1, 0, -1).encode(), slave.bounds(), 0) == []


def test_heartbeats_and_silence():
    master, slave = Log(b"x" * 10, [(1, 0)]), Log()
    ours = replicate(master, slave)
    assert ours.heartbeat(master.bounds(), 4999) == b""
    assert ours.heartbeat(master.bounds(), 5000) == Transfer(0, 10, 1, 0, 0).encode()
    assert ours.heartbeat(master.bounds(), 5001) == b""
    master.confirm = 10
    assert ours.heartbeat(master.bounds(), 5002) == Transfer(0, 10, 1, 0, 10).encode()
    assert not ours.expired(20_000)
    assert ours.expired(20_001)


def test_caught_up_time_moves_under_steady_load():
    """RocketMQ compares with the end of the log at the *last* send, which a busy slave never reaches."""
    master = Log(b"x" * 16, [(1, 0)])
    ours = master_session(master)
    ours.receive(SlaveHandshake(2).encode() + Ack(0).encode(), master.bounds(), 0)
    for now in range(1, 1000):
        batch = ours.next_batch(master.bounds(), 16)
        ours.frame(batch, batch.max_bytes, master.bounds(), now)
        acked = ours.next_offset - 16
        master.data += b"y" * 16
        if acked:
            ours.receive(Ack(acked).encode(), master.bounds(), now)
    assert ours.last_caught_up_ms >= 990
    assert ours.caught_up_ms(master.bounds(), 5000) >= 990


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([Ack(0)], "before the handshake"),
        ([SlaveHandshake(2), Ack(101)], "claims 101 bytes, the log has 100"),
        ([SlaveHandshake(2), Ack(50), Ack(60)], "ack of 60 after 50, sent up to 50"),
        ([SlaveHandshake(2), Ack(50), Ack(49)], "ack of 49 after 50"),
        ([SlaveHandshake(2), Ack(50), SlaveHandshake(2)], "middle of a link"),
        ([SlaveHandshake(2), SlaveHandshake(3)], "middle of a link"),
    ],
)
def test_forged_frames_from_a_slave_3015(frames, words):
    master = Log(b"x" * 100, [(1, 0)])
    session = master_session(master)
    with pytest.raises(HAFrameError, match=words):
        session.receive(b"".join(frame.encode() for frame in frames), master.bounds(), 0)


def test_a_repeated_handshake_is_answered_once():
    master = Log(b"x" * 100, [(1, 0)])
    session = master_session(master)
    assert session.receive(SlaveHandshake(2).encode(), master.bounds(), 0)
    assert session.receive(SlaveHandshake(2).encode(), master.bounds(), 0) == b""


HANDSHAKE = MasterHandshake(100, 1, (EpochStart(1, 0),))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([Transfer(0, 40, 1, 0, 0)], "before the handshake"),
        ([HANDSHAKE, HANDSHAKE], "second handshake"),
        ([MasterHandshake(9, 1, (EpochStart(2, 0), EpochStart(1, 5)))], "out of order"),
        ([HANDSHAKE, Transfer(5, 39, 1, 0, 0)], "transfer at 39, the log ends at 40"),
        ([HANDSHAKE, Transfer(0, 39, 1, 0, 0)], "transfer at 39, the log ends at 40"),
    ],
)
def test_wrong_frames_from_a_master(frames, words):
    slave = Log(b"x" * 40, [(1, 0)])
    session = slave_session(slave)
    with pytest.raises(HAFrameError, match=words):
        for frame in frames:
            slave.apply(session.receive(frame.encode(), slave.bounds(), 0))
            session.ack(session.position, 0)


def test_a_gap_in_the_middle_of_a_link_is_refused():
    slave = Log(b"x" * 40, [(1, 0)])
    session = slave_session(slave)
    slave.apply(session.receive(HANDSHAKE.encode(), slave.bounds(), 0))
    session.ack(40, 0)
    slave.apply(session.receive(Transfer(3, 40, 1, 0, 0).encode() + b"yyy", slave.bounds(), 0))
    with pytest.raises(HAFrameError, match="transfer at 50, the log ends at 43"):
        session.receive(Transfer(3, 50, 1, 0, 0).encode(), slave.bounds(), 0)


def test_transfer_where_the_epochs_changed_behind_the_links_back_9689():
    """The epoch of a piece is looked up when it is sent: a new term cannot leave a link with an old label."""
    master, slave = Log(b"x" * 20, [(1, 0)]), Log()
    ours = replicate(master, slave)
    master.epochs.append(2, 20)
    master.data += b"y" * 5
    batch = ours.next_batch(master.bounds(), 100)
    assert (batch.epoch, batch.epoch_start) == (2, 20)


@st.composite
def histories(draw):
    """Logs of two replicas: a common history, then different terms. Each byte shows its epoch and offset."""
    epoch, logs = 0, (Log(), Log())

    def write(log: Log, size: int) -> None:
        if size or draw(st.booleans()):
            log.epochs.append(epoch, log.max)
        log.data += bytes((epoch * 31 + offset) % 256 for offset in range(log.max, log.max + size))

    for _ in range(draw(st.integers(0, 3))):
        epoch += draw(st.integers(1, 3))
        size = draw(st.integers(1, 40))
        for log in logs:
            write(log, size)
    master, slave = draw(st.permutations(logs))
    if slave.max and draw(st.booleans()):
        keep = draw(st.integers(1, slave.max))
        slave.apply([Truncate(keep)])
    for _ in range(draw(st.integers(0, 2))):
        epoch += 1
        write(slave, draw(st.integers(0, 40)))
    for _ in range(draw(st.integers(0, 2))):
        epoch += 1
        write(master, draw(st.integers(0, 40)))
    epoch += 1
    master.epochs.append(epoch, master.max)
    master.data += bytes(draw(st.integers(0, 40)))
    return master, slave


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(1, 64), st.integers(0, 2**32))
def test_any_two_histories_become_equal(logs, batch, seed):
    master, slave = logs
    chance = random.Random(seed)

    def cut(data: bytes) -> list[bytes]:
        points = sorted(chance.randint(0, len(data)) for _ in range(3))
        return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True) if a < b]

    replicate(master, slave, batch=batch, cut=cut)
    assert slave.data == master.data
    assert slave.epochs.entries == master.epochs.entries


@given(st.binary(max_size=100))
def test_garbage_never_touches_the_log(data):
    master, slave = Log(b"x" * 100, [(1, 0)]), Log(b"x" * 40, [(1, 0)])
    for session, log in ((master_session(master), master), (slave_session(slave), slave)):
        try:
            session.receive(data, log.bounds(), 0)
        except HAFrameError:
            continue
        if isinstance(session, MasterSession):
            assert session.ack_offset <= 100
    list(MasterFrameReader().feed(b""))


def records(count: int, offset: int, body: bytes = bytes(100)) -> bytes:
    """Records of one size, as they are in a log from `offset` on."""
    data = b""
    for number in range(count):
        message = StoredMessage(topic="T", queue_id=0, body=body)
        data += encode_record(
            message, queue_offset=number, physical_offset=offset + len(data), store_timestamp=0
        )
    return data


def test_a_frame_ends_with_a_record():
    log = records(3, 5_000)
    size = len(log) // 3
    log = memoryview(log + encode_blank(1000) + bytes(992))

    def whole(data: memoryview, limit: int, *, ends: bool = True) -> int:
        return whole_records(data, limit, 5_000, ends=ends)

    assert whole(log[: 2 * size], 2 * size) == 2 * size
    assert whole(log[: 2 * size + 1], 2 * size + 1, ends=False) == 2 * size, (
        "the largest limit, amid a record"
    )
    assert whole(log, 2 * size + 7) == 2 * size
    assert whole(log, 3 * size + 7) == 3 * size, "the filler goes in a separate frame"
    assert whole(log, 7) == size, "one record may be longer"
    assert whole(log[: size - 1], 7) == 7, "the rest of it is not to be had"
    assert whole(log[: size - 1], 7, ends=False) == 7
    assert whole(log[3 * size :], 7) == 1000, "a filler may be longer, too"
    assert whole(log[3 * size : -1], 7) == 7
    assert whole(log[: size - 1], size) == size - 1


def test_a_slave_that_has_the_beginning_of_a_record_gets_its_rest_in_one_frame():
    """It became a member of the SyncStateSet meanwhile; the frames after that are whole records again."""
    # A body that looks like records of other places, and like a filler.
    deceit = records(1, 77) + encode_blank(500) + records(1, 5_000)[:40]
    log = records(3, 5_000, deceit)
    size = len(log) // 3
    log = memoryview(log + encode_blank(1000) + bytes(992))
    for had in (1, 3, 4, 5, 8, 9, 100, size - 1):
        rest = log[had:]
        assert whole_records(rest, 7, 5_000 + had, ends=True) == size - had
        assert whole_records(rest, size, 5_000 + had, ends=True) == size - had
        assert whole_records(rest, 3 * size, 5_000 + had, ends=True) == size - had
    had = 2 * size + 5
    assert whole_records(log[had:], 7, 5_000 + had, ends=True) == size - 5, "up to the filler"
    log = log[: 3 * size]
    assert whole_records(log[had:], 7, 5_000 + had, ends=True) == size - 5, "the log ends"
    assert whole_records(log[had:], 7, 5_000 + had, ends=False) == 7, "more than a frame holds"
