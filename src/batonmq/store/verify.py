"""Reads a store directory without opening it as a store: for audits, tools and offline readers.

Nothing is written and no lock is taken, so a live store, Java's or ours, can be looked at; what is appended
meanwhile may or may not be seen. Consume queue units without a record are an error only if they lie before
the end that the walk found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batonmq.protocol.message.light import LIGHT_QUEUE_ID, light_offsets
from batonmq.store.config import UNIT_SIZE
from batonmq.store.consumequeue import FILLER_SIZE, UNIT, Unit
from batonmq.store.errors import StoreError
from batonmq.store.mapped import MappedLog, file_name, list_bases
from batonmq.store.policy import UnitCode
from batonmq.store.recovery import walk
from batonmq.store.scan import Damage, Record, blank_size, check_record, read_records, tags_code

MAX_ERRORS = 100
_NONE: Mapping[str, UnitCode] = {}


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    min_offset: int = 0
    """First commit log offset."""
    end_offset: int = 0
    """Where the last valid record ends."""
    records: int = 0
    damage: Damage | None = None
    """What ended the walk; None for an ordinary end: zeros or a torn record in the last file."""
    queues: int = 0
    units: int = 0
    """Consume queue units that were compared with their record."""
    waiting: int = 0
    """Records that no consume queue unit points to, but a later dispatch will: behind the last unit."""
    errors: list[str] = field(default_factory=list)
    """Disagreements between commit log and consume queues, the first hundred."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return self.damage is None and not self.errors


def open_log(root: Path) -> MappedLog:
    """The commit log of the store in `root`, read-only; raises `StoreError` if there is none."""
    directory = root / "commitlog"
    bases = list_bases(directory)
    sizes = [(directory / file_name(base)).stat().st_size for base in bases]
    if not bases or not sizes[0]:
        raise StoreError(f"{directory} holds no commit log")
    return MappedLog(directory, sizes[0], writable=False)


def read_store(root: Path, start: int | None = None) -> Iterator[tuple[Record, memoryview]]:
    """All records of the store in `root` from commit log offset `start` (a record's beginning) on, each with
    its bytes, in log order. CRCs are not looked at; ends where no whole record follows."""
    files = open_log(root)
    try:
        position = files.base if start is None else start
        while (file := files.file_at(position)) is not None:
            with memoryview(file.map) as view:
                for record in read_records(file.map, position - file.base, file.size):
                    at = position - file.base
                    if record.physical_offset != position:
                        return
                    yield record, view[at : at + record.size]
                    position += record.size
            if not blank_size(file.map, position - file.base, file.size):
                return
            position = file.base + file.size
    finally:
        files.close()


def verify(root: Path, *, crc: bool = True, unit_codes: Mapping[str, UnitCode] = _NONE) -> Report:
    """Walk the commit log in `root` and compare every consume queue unit with its record. `unit_codes`: as in
    the `StorePolicy` that the store was written with."""
    files = open_log(root)
    try:
        report = Report(min_offset=files.base)
        walked = walk(files, files.base, crc=crc)
        report.records, report.end_offset = walked.records, walked.end
        last = files.files[-1]
        if walked.damage is not None and not (walked.damage.torn and walked.end >= last.base):
            report.damage = walked.damage
        pointed = _compare_queues(root / "consumequeue", files, unit_codes, report)
        _count_unpointed(root, pointed, report)
        return report
    finally:
        files.close()


def _compare_queues(
    directory: Path, files: MappedLog, unit_codes: Mapping[str, UnitCode], report: Report
) -> dict[tuple[str, int], int]:
    """Report units that are wrong; returns each queue's end as a queue offset."""
    ends: dict[tuple[str, int], int] = {}
    for path in sorted(directory.glob("*/*")):
        if not path.name.isdigit():
            continue
        report.queues += 1
        topic, queue_id = path.parent.name, int(path.name)
        for base in list_bases(path):
            data = (path / file_name(base)).read_bytes()
            for number, unit in enumerate(UNIT.iter_unpack(data[: len(data) // UNIT_SIZE * UNIT_SIZE])):
                physical_offset, size, _ = unit
                if size <= 0:
                    break
                queue_offset = base // UNIT_SIZE + number
                ends[topic, queue_id] = queue_offset + 1
                if size == FILLER_SIZE or not files.base <= physical_offset < report.end_offset:
                    continue
                report.units += 1
                wrong = _disagreement(files, unit_codes, (topic, queue_id, queue_offset), unit)
                if wrong and len(report.errors) < MAX_ERRORS:
                    report.errors.append(f"{topic}/{queue_id} unit {queue_offset}: {wrong}")
    return ends


def _disagreement(
    files: MappedLog, unit_codes: Mapping[str, UnitCode], place: tuple[str, int, int], unit: Unit
) -> str | None:
    """What is wrong with the unit at `place`: topic, queue id, queue offset; None if it agrees."""
    physical_offset, size, code = unit
    file = files.file_at(physical_offset)
    if file is None:
        return f"offset {physical_offset} is not in the log"
    at = physical_offset - file.base
    found = check_record(file.map, at, file.size, physical_offset, crc=False)
    if isinstance(found, Damage):
        return f"no record at {physical_offset}: {found.reason}"
    if found != size:
        return f"size {size}, the record at {physical_offset} has {found}"
    record = next(read_records(file.map, at, file.size))
    lights = [(name, LIGHT_QUEUE_ID, at) for name, at in light_offsets(record.topic, record.properties)]
    if place != (record.topic, record.queue_id, record.queue_offset) and place not in lights:
        return f"the record at {physical_offset} is {record.topic}/{record.queue_id} {record.queue_offset}"
    unit_code = unit_codes.get(record.topic)
    expected = (
        tags_code(record.properties)
        if unit_code is None
        else unit_code(record.properties, record.store_timestamp)
    )
    return None if code == expected else f"code {code}, the record has {expected}"


def _count_unpointed(root: Path, ends: dict[tuple[str, int], int], report: Report) -> None:
    waiting = 0
    for record, view in read_store(root):
        view.release()
        if record.physical_offset >= report.end_offset:
            break
        if not record.has_unit:
            continue
        if record.queue_offset >= ends.get((record.topic, record.queue_id), 0):
            waiting += 1
    report.waiting = waiting
