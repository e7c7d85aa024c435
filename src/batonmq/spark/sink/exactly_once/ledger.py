"""The ledger of decided batches: files in a directory of the driver, beside the checkpoint.

``run`` has the random id that all batches share, ``query`` the id of the streaming query that they belong to
or `BATCH_JOB`, ``group`` the producer group of the half messages.
``<epoch>.batch`` has the half messages of a decided batch; its creation is the commit point. With
``<epoch>.done`` all of them are ended, and the list is deleted.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import zlib
from pathlib import Path
from typing import Final

import msgspec

from batonmq.common.files import reason, replace_file, sync_directory, write_beside
from batonmq.spark.options import ClearError
from batonmq.spark.sink.exactly_once.core import Unit

KEPT: Final = 100
"""Number of finished batches that are kept: as many as in Spark's checkpoint
(`spark.sql.streaming.minBatchesToRetain`)."""
BATCH_JOB: Final = "a batch job"
"""Owner of a ledger that is not a stream's."""
_CRC_SIZE: Final = 4
_LIST, _DONE = ".batch", ".done"


class LedgerError(ClearError):
    """The ledger cannot be used; the text has the reason."""


def encode_units(units: list[Unit]) -> bytes:
    """Half messages as bytes, for the report of a task and for the ledger."""
    return msgspec.msgpack.encode(units)


def decode_units(data: bytes) -> list[Unit]:
    """Raises `msgspec.MsgspecError`."""
    return msgspec.msgpack.decode(data, type=list[Unit])


class Ledger:
    """One directory. Its methods block, and raise `LedgerError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self) -> str:
        """The id of all its batches; created at the first call."""
        try:
            with contextlib.suppress(FileExistsError):
                self._create("run", uuid.uuid4().hex.encode())
            found = (self.path / "run").read_text()
        except OSError as error:
            raise LedgerError(f"the ledger of the sink cannot be used: {reason(error)}") from error
        if not found.isalnum():
            raise LedgerError(f"{self.path / 'run'} does not hold the id of a ledger")
        return found

    def claim(self, query: str) -> None:
        """This ledger is that of the streaming query with this id, or of `BATCH_JOB`. Raises `LedgerError` if
        it is another's: its finished batches would be taken for those of this query, whose rows would be
        dropped."""
        try:
            with contextlib.suppress(FileExistsError):
                self._create("query", query.encode())
            owner = (self.path / "query").read_text()
        except OSError as error:
            raise LedgerError(f"the ledger of the sink cannot be used: {reason(error)}") from error
        if owner != query:
            raise LedgerError(
                f"{self.path} is the ledger of another query ({owner}, this one is {query}): give each query "
                "its own transactionLocation, and delete a ledger together with its checkpoint"
            )

    def check_last(self, epoch: int) -> None:
        """Raises `LedgerError` if there are later batches than this one. Spark repeats the last one only, so
        its checkpoint was set back: a batch with the number of a finished one has other rows now, which
        would be dropped."""
        last = max([*self._epochs(_LIST), *self._epochs(_DONE)], default=epoch)
        if last > epoch:
            raise LedgerError(
                f"batch {epoch} comes again, but {self.path} has later ones, up to {last}: the checkpoint is "
                "older than this ledger, or another query is running with both. If none is, put the newer "
                "checkpoint back, or delete the ledger: then all rows since this checkpoint are written again"
            )

    def use_group(self, group: str) -> None:
        """Half messages are those of this producer group. Raises `LedgerError` if batches of another one are
        decided and not ended: brokers end a half message for its own group only."""
        try:
            path = self.path / "group"
            before = path.read_text() if path.exists() else group
            if before != group and self.unfinished():
                raise LedgerError(
                    f"{self.path} has a decided batch of producer group {before!r}, not {group!r}: "
                    f"start it with producerGroup={before} until that batch is delivered"
                )
            if before != group or not path.exists():
                replace_file(path, group.encode())
        except OSError as error:
            raise LedgerError(f"the ledger of the sink cannot be used: {reason(error)}") from error

    def is_done(self, epoch: int) -> bool:
        """Whether all half messages of this batch are ended."""
        return (self.path / f"{epoch}{_DONE}").exists()

    def decided(self, epoch: int) -> list[Unit] | None:
        """The half messages of a decided batch that is not done; None if it is not decided, or done."""
        path = self.path / f"{epoch}{_LIST}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"the ledger of the sink cannot be read: {reason(error)}") from error
        body, crc = data[:-_CRC_SIZE], data[-_CRC_SIZE:]
        try:
            if zlib.crc32(body).to_bytes(_CRC_SIZE, "big") != crc:
                raise msgspec.DecodeError("its checksum is wrong")
            return decode_units(body)
        except msgspec.MsgspecError as error:
            raise LedgerError(f"{path} is damaged: {error}; restore it from a backup") from error

    def unfinished(self) -> list[int]:
        """Decided batches that are not done, oldest first."""
        return [epoch for epoch in self._epochs(_LIST) if not self.is_done(epoch)]

    def decide(self, epoch: int, units: list[Unit]) -> None:
        """Decide a batch: the commit point. Raises `LedgerError` if another driver has decided it."""
        body = encode_units(units)
        try:
            with contextlib.suppress(FileExistsError):
                self._create(f"{epoch}{_LIST}", body + zlib.crc32(body).to_bytes(_CRC_SIZE, "big"))
                # The list of a driver that has finished the batch is gone: then this name was free.
                if not self.is_done(epoch):
                    return
                (self.path / f"{epoch}{_LIST}").unlink()
        except OSError as error:
            raise LedgerError(f"the ledger of the sink cannot be written: {reason(error)}") from error
        raise LedgerError(
            f"batch {epoch} was decided by another driver meanwhile: two queries use {self.path}"
        )

    def finish(self, epoch: int) -> None:
        """All half messages of the batch are ended: replace the list by a mark, and delete old batches."""
        try:
            with contextlib.suppress(FileExistsError):
                self._create(f"{epoch}{_DONE}", b"")
            (self.path / f"{epoch}{_LIST}").unlink(missing_ok=True)
            for old in self._epochs(_DONE)[:-KEPT]:
                (self.path / f"{old}{_DONE}").unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"the ledger of the sink cannot be written: {reason(error)}") from error

    def _epochs(self, suffix: str) -> list[int]:
        try:
            names = [path.stem for path in self.path.iterdir() if path.suffix == suffix]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _create(self, name: str, data: bytes) -> None:
        """Create a file atomically with its contents. Raises `FileExistsError`."""
        path = self.path / name
        # Two drivers must not share the temporary file.
        beside = write_beside(path.with_name(f"{name}.{os.getpid()}"), data)
        try:
            os.link(beside, path)
        finally:
            beside.unlink()
        sync_directory(self.path)
