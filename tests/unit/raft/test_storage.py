"""The files: what a crash leaves is repaired, what a crash cannot leave is refused."""

import random
from pathlib import Path

import pytest
from tests.simulation.memory_disk import MemoryDisk

from batonmq.raft.disk import OsDisk
from batonmq.raft.errors import StorageCorrupt
from batonmq.raft.messages import Entry, Kind, Members, Snapshot, SnapshotMeta
from batonmq.raft.state import HardState, Save
from batonmq.raft.storage import Recovered, Storage


def entries(term: int, *payloads: str) -> list[Entry]:
    return [Entry(term, Kind.DATA, payload.encode()) for payload in payloads]


def save(first: int, new: list[Entry], *, term: int, vote: str | None = None, commit: int = 0) -> Save:
    last = first + len(new) - 1
    return Save(HardState(term, vote, commit), first, new, None, last, new[-1].term if new else 0, [])


def fresh(segment_bytes: int = 1 << 20) -> tuple[MemoryDisk, Storage]:
    disk = MemoryDisk(random.Random(1))
    storage = Storage(disk, "g", "n0", segment_bytes=segment_bytes)
    storage.open()
    return disk, storage


def reopen(disk: MemoryDisk, group: str = "g", node: str = "n0") -> Recovered:
    return Storage(disk, group, node, segment_bytes=1 << 20).open()


def payloads(recovered: Recovered) -> list[str]:
    log = recovered.log
    return [e.data.decode() for e in log.slice(log.first_index, log.last_index)]


SNAPSHOT = Snapshot(SnapshotMeta(3, 1, Members({"n0": "a:1"}, {"n1": "b:2"})), b"state")


def test_what_was_saved_is_found_again() -> None:
    disk, storage = fresh()
    storage.save(save(1, entries(1, "a", "b", "c"), term=1, vote="n0"))
    storage.save(save(4, entries(2, "d"), term=2, vote="n2", commit=3))
    found = reopen(disk)
    assert payloads(found) == ["a", "b", "c", "d"]
    assert found.hard_state == HardState(2, "n2", 3)
    assert (found.snapshot, found.cut_bytes) == (None, 0)


def test_files_of_another_version_are_named() -> None:
    disk, storage = fresh()
    storage.write_snapshot(SNAPSHOT)
    (segment,) = (name for name in disk.names() if name.startswith("log-"))
    (snapshot,) = (name for name in disk.names() if name.startswith("snapshot-"))
    for name, magic in ((segment, b"BMQRLOG2"), (snapshot, b"BMQRSNP3")):
        before = disk.read(name)
        replace(disk, name, magic + before[8:])
        with pytest.raises(StorageCorrupt, match=rf"{name}: its format has version {magic[-1:].decode()}, "):
            reopen(disk)
        replace(disk, name, before)
    reopen(disk)


def replace(disk: MemoryDisk, name: str, data: bytes) -> None:
    disk.remove(name)
    file = disk.open_append(name)
    file.write(data)
    file.sync()


def test_an_overlapping_append_replaces_the_end_of_the_log() -> None:
    disk, storage = fresh()
    storage.save(save(1, entries(1, "a", "b", "c"), term=1))
    storage.save(save(2, entries(2, "B"), term=2))
    assert payloads(reopen(disk)) == ["a", "B"]


def test_segments_roll_and_are_dropped_after_a_snapshot() -> None:
    disk, storage = fresh(segment_bytes=200)
    for index in range(1, 21):
        storage.save(save(index, entries(1, f"{index:020d}"), term=1, commit=index - 1))
    before = disk.names()
    assert len(before) > 5
    meta = SnapshotMeta(15, 1, Members({"n0": ""}))
    storage.write_snapshot(Snapshot(meta, b"S"))
    storage.drop_before(15)
    assert [name for name in before if name not in disk.names()] == before[:3]
    found = reopen(disk)
    assert found.snapshot == Snapshot(meta, b"S")
    assert (found.log.base_index, found.log.base_term, found.log.last_index) == (15, 1, 20)
    assert payloads(found) == [f"{index:020d}" for index in range(16, 21)]


def test_a_leaders_snapshot_replaces_the_log() -> None:
    disk, storage = fresh()
    storage.save(save(1, entries(1, "x"), term=1))
    leader = Snapshot(SnapshotMeta(9, 2, Members({"n0": ""})), b"S")
    storage.save(Save(HardState(2, None, 9), 10, entries(2, "y"), leader, 10, 2, []))
    found = reopen(disk)
    assert (found.log.base_index, found.log.base_term) == (9, 2)
    assert payloads(found) == ["y"]


def test_a_crash_between_a_leaders_snapshot_and_the_log_drops_what_it_replaced() -> None:
    disk, storage = fresh()
    storage.save(save(1, entries(1, "a", "b", "stale", "stale"), term=1))
    storage.write_snapshot(Snapshot(SnapshotMeta(3, 2, Members({"n0": ""})), b"S"))
    assert payloads(reopen(disk)) == []
    # The same again must be readable after it was repaired and written to.
    again = Storage(disk, "g", "n0", segment_bytes=1 << 20)
    assert again.open().log.last_index == 3
    again.save(save(4, entries(2, "new"), term=2))
    assert payloads(reopen(disk)) == ["new"]


def test_a_snapshot_ahead_of_the_log_on_disk() -> None:
    disk, storage = fresh()
    storage.save(save(1, entries(1, "a"), term=1))
    storage.write_snapshot(SNAPSHOT)
    storage = Storage(disk, "g", "n0", segment_bytes=1 << 20)
    found = storage.open()
    assert (found.log.base_index, found.log.last_index) == (3, 3)
    storage.save(save(4, entries(1, "d"), term=1))
    assert payloads(reopen(disk)) == ["d"]


def written() -> tuple[MemoryDisk, str, list[int]]:
    """A log of five saves, its file, and where each save ends."""
    disk, storage = fresh()
    (name,) = disk.names()
    ends = [len(disk.read(name))]
    for index in range(1, 6):
        storage.save(save(index, entries(1, f"entry {index}"), term=1))
        ends.append(len(disk.read(name)))
    return disk, name, ends


def put(disk: MemoryDisk, name: str, data: bytes) -> None:
    disk.remove(name)
    file = disk.open_append(name)
    file.write(data)
    file.sync()
    disk.sync_names()


def test_a_cut_at_any_byte_leaves_the_whole_saves_before_it() -> None:
    disk, name, ends = written()
    data = disk.read(name)
    for cut in range(ends[0], len(data) + 1):
        put(disk, name, data[:cut])
        whole = sum(1 for end in ends[1:] if end <= cut)
        found = reopen(disk)
        assert payloads(found) == [f"entry {i}" for i in range(1, whole + 1)], cut
        assert found.cut_bytes == max(ends[whole], len(data[:cut].rstrip(b"\0"))) - ends[whole]
        assert len(disk.read(name)) == ends[whole]


def test_a_flipped_bit_anywhere_is_refused_naming_file_and_offset() -> None:
    disk, name, ends = written()
    data = disk.read(name)
    for place in range(len(data)):
        put(disk, name, data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        record = max((end for end in ends if end <= place), default=0)
        with pytest.raises(StorageCorrupt, match=rf"^{name}: offset {record}: [^\n]*$"):
            reopen(disk)


def test_a_last_save_of_which_a_sector_was_never_written_is_cut() -> None:
    disk, storage = fresh()
    (name,) = disk.names()
    storage.save(save(1, entries(1, "kept"), term=1))
    end = len(disk.read(name))
    storage.save(save(2, entries(1, "x" * 3000), term=1))
    data = disk.read(name)
    for sector in range(end + 512 - end % 512, len(data), 512):
        hole = min(sector + 512, len(data))
        put(disk, name, data[:sector] + bytes(hole - sector) + data[hole:])
        assert payloads(reopen(disk)) == ["kept"], sector


ROOM = bytes(4096)
"""What a disk that makes room ahead leaves after the end."""


def test_room_after_the_end_is_no_damage_and_goes_before_more_is_written() -> None:
    disk, name, ends = written()
    put(disk, name, disk.read(name) + ROOM)
    storage = Storage(disk, "g", "n0", segment_bytes=1 << 20)
    found = storage.open()
    assert (len(payloads(found)), found.cut_bytes, len(disk.read(name))) == (5, 0, ends[-1])
    storage.save(save(6, entries(1, "entry 6"), term=1))
    assert payloads(reopen(disk)) == [f"entry {i}" for i in range(1, 7)]


def test_a_save_of_which_any_sectors_were_not_written_into_the_room_is_cut() -> None:
    disk, storage = fresh()
    (name,) = disk.names()
    storage.save(save(1, entries(1, "kept"), term=1))
    end = len(disk.read(name))
    storage.save(save(2, entries(1, "x" * 1800), term=1))
    data = disk.read(name) + ROOM
    first = end - end % 512
    sectors = range(first, len(data) - len(ROOM), 512)
    assert len(sectors) == 4
    for lost in range(1, 1 << len(sectors)):
        torn = bytearray(data)
        for place, sector in enumerate(sectors):
            if lost >> place & 1:
                torn[max(sector, end) : sector + 512] = bytes(sector + 512 - max(sector, end))
        put(disk, name, bytes(torn))
        again = Storage(disk, "g", "n0", segment_bytes=1 << 20)
        assert payloads(again.open()) == ["kept"], f"{lost:b}"
        # Shorter than what was torn: nothing of that may be left behind it.
        again.save(save(2, entries(1, "new"), term=1))
        assert payloads(reopen(disk)) == ["kept", "new"], f"{lost:b}"


def test_a_flipped_bit_before_the_room_is_refused() -> None:
    disk, name, ends = written()
    data = disk.read(name)
    for place in range(ends[0], len(data)):
        flipped = data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
        put(disk, name, flipped + ROOM)
        with pytest.raises(StorageCorrupt, match="damaged record"):
            reopen(disk)


def test_a_real_disk_makes_room_ahead(tmp_path: Path) -> None:
    def storage() -> Storage:
        return Storage(OsDisk(tmp_path, allocate_bytes=10_000), "g", "n0", segment_bytes=25_000)

    first = storage()
    first.open()
    for index in range(1, 41):
        first.save(save(index, entries(1, f"{index:01000d}"), term=1))
    first.write_snapshot(SNAPSHOT)
    logs = sorted(tmp_path.glob("log-*"))
    assert len(logs) == 2
    assert logs[0].stat().st_size < 27_000, "a segment that is full keeps no room"
    assert logs[1].read_bytes().endswith(bytes(1000))
    (snapshot,) = tmp_path.glob("snapshot-*")
    assert not snapshot.read_bytes().endswith(bytes(1000))

    # Without close: as after a crash.
    second = storage()
    assert [int(each) for each in payloads(second.open())] == list(range(4, 41))
    second.save(save(41, entries(1, "41"), term=1))
    second.close()
    size = logs[1].stat().st_size
    assert [int(each) for each in payloads(storage().open())] == list(range(4, 42))
    assert logs[1].stat().st_size == size, "closing leaves no room"


def test_zeros_in_the_middle_are_not_an_unfinished_write() -> None:
    disk, storage = fresh()
    (name,) = disk.names()
    storage.save(save(1, entries(1, "x" * 3000), term=1))
    storage.save(save(2, entries(1, "y"), term=1))
    data = disk.read(name)
    put(disk, name, data[:1024] + bytes(512) + data[1536:])
    with pytest.raises(StorageCorrupt):
        reopen(disk)


def test_a_damaged_snapshot_is_refused() -> None:
    disk, storage = fresh()
    storage.write_snapshot(SNAPSHOT)
    (name,) = [n for n in disk.names() if n.startswith("snapshot")]
    data = disk.read(name)
    for place in range(len(data)):
        put(disk, name, data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(StorageCorrupt, match="damaged snapshot"):
            reopen(disk)
        put(disk, name, data[:place])
        with pytest.raises(StorageCorrupt, match="damaged snapshot"):
            reopen(disk)


def test_a_missing_segment_is_refused() -> None:
    disk, storage = fresh(segment_bytes=200)
    for index in range(1, 12):
        storage.save(save(index, entries(1, f"{index:030d}"), term=1))
    names = disk.names()
    disk.remove(names[1])
    with pytest.raises(StorageCorrupt, match="the segment before it is missing"):
        reopen(disk)
    disk.remove(names[0])
    with pytest.raises(StorageCorrupt, match="the log begins at"):
        reopen(disk)


@pytest.mark.parametrize(("group", "node"), [("other", "n0"), ("g", "n1")])
def test_another_nodes_directory_is_refused(group: str, node: str) -> None:
    disk, _ = fresh()
    with pytest.raises(StorageCorrupt, match="belongs to node 'n0' of group 'g'"):
        reopen(disk, group, node)


def test_unfinished_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "snapshot-00000000000000000009-00000000000000000001.raft.tmp").write_bytes(b"half")
    storage = Storage(OsDisk(tmp_path), "g", "n0", segment_bytes=1 << 20)
    storage.open()
    storage.save(save(1, entries(1, "a"), term=1, vote="n0"))
    storage.close()
    again = Storage(OsDisk(tmp_path), "g", "n0", segment_bytes=1 << 20)
    assert payloads(again.open()) == ["a"]
    again.close()
    assert [p.name for p in tmp_path.iterdir()] == ["log-0000000000000001.raft"]


def test_a_directory_has_one_node_at_a_time(tmp_path: Path) -> None:
    first, second = OsDisk(tmp_path / "n0"), OsDisk(tmp_path / "n0")
    first.lock()
    with pytest.raises(OSError, match="is in use by another process"):
        second.lock()
    second.unlock()
    with pytest.raises(OSError, match="in use"):
        OsDisk(tmp_path / "n0").lock()
    first.unlock()
    second.lock()
    assert second.names() == []
    second.unlock()
