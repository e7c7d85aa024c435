"""Bodies of requests that end transactions."""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.json import Body


class TransactionEnd(Body):
    """One half message: its two offsets, as for END_TRANSACTION, and its unique id."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str


class TransactionEnds(Body):
    """Half messages to be committed or rolled back together."""

    ends: list[TransactionEnd] = field(default_factory=list)
