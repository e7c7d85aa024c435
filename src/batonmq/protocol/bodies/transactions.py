"""Bodies about transactional messages."""

from __future__ import annotations

from typing import Final

from msgspec import field

from batonmq.protocol.json import Body


class TransactionChecks(Body):
    """How often undecided half messages were checked; also ``config/transactionChecks.json``."""

    offset: int = 0
    """Queue offset of the first of them."""
    checks: str = ""
    """Base64 of zlib of one byte for each half message from there on."""


class TransactionEnd(Body):
    """One half message: its two offsets, as for END_TRANSACTION, and its unique id."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str


MOST_ENDS: Final = 4_096
"""Most half messages in one request."""


class TransactionEnds(Body):
    """Half messages to be committed or rolled back together, at most `MOST_ENDS`."""

    ends: list[TransactionEnd] = field(default_factory=list)
