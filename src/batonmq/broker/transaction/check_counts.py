"""Counts the checks of undecided half messages, beyond the counts in their records.

A master counts in memory and publishes its counts after each round of checks, in
``config/transactionChecks.json``; slaves copy the file. So a new master continues the counts and gives a
message up after `transactionCheckMax` checks in total. RocketMQ instead stores the message again at each
check.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Final

from batonmq.broker.tables.persistence import fetch_if_known
from batonmq.protocol.bodies.transactions import TransactionChecks
from batonmq.protocol.headers.broker.replication import GetAllTransactionChecks
from batonmq.protocol.json import decode, encode

if TYPE_CHECKING:
    from batonmq.broker.tables.persistence import Master

MOST: Final = 1 << 24
"""Most half messages, from the first undecided one on, whose counts are kept."""


class CheckCounts:
    """The published counts: one byte each for consecutive half messages from `offset` on."""

    def __init__(self) -> None:
        self.offset = 0
        self.counts = b""
        self._changed = False

    def publish(self, offset: int, counts: bytes) -> bool:
        """Keep the counts of a round; False if they are unchanged."""
        counts = counts[:MOST].rstrip(b"\0")
        if not counts:
            offset = 0
        if (offset, counts) == (self.offset, self.counts):
            return False
        self.offset, self.counts = offset, counts
        self._changed = True
        return True

    def take_changed(self) -> bool:
        """Whether the counts changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def encode(self) -> bytes:
        """Contents of transactionChecks.json. A million equal counts take about one KiB."""
        packed = base64.b64encode(zlib.compress(self.counts)).decode() if self.counts else ""
        return encode(TransactionChecks(offset=self.offset, checks=packed))

    def restore(self, data: bytes) -> None:
        """Load a transactionChecks.json. Raises ValueError, without a change."""
        read = decode(data, TransactionChecks)
        counts = b""
        if read.checks:
            inflater = zlib.decompressobj()
            try:
                counts = inflater.decompress(base64.b64decode(read.checks, validate=True), MOST)
            except zlib.error as error:
                raise ValueError(f"the counts of transaction checks do not inflate: {error}") from None
            if not inflater.eof:
                raise ValueError(f"the counts of transaction checks are cut short, or more than {MOST}")
        if not 0 <= read.offset < 1 << 62:
            raise ValueError(f"the counts of transaction checks begin at {read.offset}")
        self.offset, self.counts = read.offset, counts

    async def copy(self, master: Master) -> None:
        """On a slave: copy the master's counts. A RocketMQ master has none."""
        if master.announces_changes:
            before = self.offset, self.counts
            if (data := await fetch_if_known(master, GetAllTransactionChecks())) is not None:
                self.restore(data)
            self._changed |= before != (self.offset, self.counts)
