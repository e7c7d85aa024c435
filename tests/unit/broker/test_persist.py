"""A table file is complete at every moment; unreadable contents are never dropped silently."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from batonmq.broker.tables import persistence
from batonmq.broker.tables.files import TableFile
from batonmq.broker.tables.persistence import Persistence, Table
from batonmq.common.config import ConfigError


def decode(data: bytes) -> str:
    text = data.decode()
    if not text.startswith("{"):
        raise ValueError("not a table")
    return text


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    return TableFile(tmp_path / "config" / "topics.json")


def test_a_missing_file_is_an_empty_table(file: TableFile) -> None:
    assert file.load(decode) is None


def test_write_keeps_the_previous_file_as_backup(file: TableFile) -> None:
    file.write(b"{1}")
    assert not file.backup.exists()
    file.write(b"{2}")
    assert file.load(decode) == "{2}"
    assert file.backup.read_bytes() == b"{1}"
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("broken", [b"", b"  \n", b"garbage", b"\xff\xfe"])
def test_a_broken_file_falls_back_to_its_backup(file: TableFile, broken: bytes) -> None:
    file.write(b"{1}")
    file.write(b"{2}")
    file.path.write_bytes(broken)
    assert file.load(decode) == "{1}"
    assert file.path.read_bytes() == broken, "the broken file stays for an inspection"


def test_a_crash_between_the_renames_leaves_the_backup(file: TableFile) -> None:
    file.write(b"{1}")
    file.path.rename(file.backup)
    assert file.load(decode) == "{1}"


def test_two_broken_files_stop_the_start_with_a_line_that_names_them(file: TableFile) -> None:
    file.write(b"{1}")
    file.write(b"{2}")
    file.path.write_bytes(b"x")
    file.backup.write_bytes(b"")
    with pytest.raises(ConfigError) as refused:
        file.load(decode)
    message = str(refused.value)
    assert str(file.path) in message and "not a table" in message and "is empty" in message
    assert "\n" not in message


def test_an_unreadable_file_stops_the_start(file: TableFile) -> None:
    file.path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"topics\.json"):
        file.load(decode)


async def test_saves_coalesce_and_the_newest_wins(file: TableFile) -> None:
    written: list[bytes] = []
    write = file.write

    def slow(data: bytes) -> None:
        written.append(data)
        write(data)

    file.write = slow  # type: ignore[method-assign]
    await asyncio.gather(*(file.save((b"{%d}" % n).__bytes__) for n in range(50)))
    assert file.load(decode) == "{49}"
    assert len(written) <= 2


async def test_contents_are_encoded_when_their_write_begins(file: TableFile) -> None:
    table = [b"{1}"]
    taken: list[bytes] = []

    def contents() -> bytes:
        taken.append(table[0])
        return table[0]

    first = asyncio.ensure_future(file.save(contents))
    while not taken:
        await asyncio.sleep(0)
    table[0] = b"{2}"
    await asyncio.gather(first, *(file.save(contents) for _ in range(20)))
    assert taken == [b"{1}", b"{2}"] and file.load(decode) == "{2}"


async def test_a_failed_save_raises_and_the_next_one_works(tmp_path: Path) -> None:
    blocked = tmp_path / "config"
    blocked.write_text("a file where the folder should be")
    file = TableFile(blocked / "topics.json")
    with pytest.raises(OSError):
        await file.save(b"{1}".__bytes__)
    blocked.unlink()
    await file.save(b"{2}".__bytes__)
    assert file.load(decode) == "{2}"


async def test_a_save_does_not_wait_for_those_that_come_after_it(file: TableFile) -> None:
    going = True

    async def others() -> None:
        while going:
            late.append(asyncio.ensure_future(file.save(b"{2}".__bytes__)))
            await asyncio.sleep(0.0005)

    late: list[asyncio.Future[None]] = []
    stream = asyncio.ensure_future(others())
    for _ in range(5):
        await asyncio.wait_for(file.save(b"{1}".__bytes__), 2)
    going = False
    await stream
    await asyncio.gather(*late)


async def test_a_save_that_fails_does_not_fail_the_next(file: TableFile) -> None:
    write, fails = file.write, [True, False]

    def failing(data: bytes) -> None:
        if fails.pop(0):
            raise OSError(28, "No space left on device")
        write(data)

    file.write = failing  # type: ignore[method-assign]
    started = asyncio.Event()

    def contents() -> bytes:
        started.set()
        return b"{1}"

    first = asyncio.ensure_future(file.save(contents))
    await started.wait()
    second = asyncio.ensure_future(file.save(b"{2}".__bytes__))
    with pytest.raises(OSError, match="No space"):
        await first
    await second
    assert file.load(decode) == "{2}"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
async def test_the_last_write_waits_for_files_to_close_but_not_for_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    tables = Persistence(tmp_path)
    tables.restore([Table(name="offsets", encode=b"{1}".__bytes__, restore=decode)])
    write, errors = TableFile.write, [OSError(code, "says the test")] * 3

    def failing(file: TableFile, data: bytes) -> None:
        if errors:
            raise errors.pop()
        write(file, data)

    monkeypatch.setattr(TableFile, "write", failing)
    monkeypatch.setattr(persistence, "FILES_AGAIN_S", 0.01)
    await tables.stop()
    written = TableFile(tmp_path / "offsets.json").load(decode)
    if code == errno.EMFILE:
        assert (written, caplog.messages) == ("{1}", [])
    else:
        assert (written, len(caplog.messages), len(errors)) == (None, 1, 2)


async def test_the_last_write_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One limit for all tables."""
    tables = Persistence(tmp_path)
    tables.restore(Table(name=name, encode=b"{1}".__bytes__, restore=decode) for name in ("a", "b", "c"))

    def failing(file: TableFile, data: bytes) -> None:
        raise OSError(errno.EMFILE, "says the test")

    monkeypatch.setattr(TableFile, "write", failing)
    monkeypatch.setattr(persistence, "FILES_PATIENCE_S", 0.2)
    began = asyncio.get_running_loop().time()
    await tables.stop()
    assert 0.2 <= asyncio.get_running_loop().time() - began < 1
    assert [line.partition(" cannot")[0] for line in caplog.messages] == [
        str(tmp_path / f"{name}.json") for name in ("a", "b", "c")
    ]
