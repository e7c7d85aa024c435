"""Bodies about transactional messages."""

from __future__ import annotations

from batonmq.protocol.json import Body


class TransactionChecks(Body):
    """How often undecided half messages were checked; also ``config/transactionChecks.json``."""

    offset: int = 0
    """Queue offset of the first of them."""
    checks: str = ""
    """Base64 of zlib of one byte for each half message from there on."""
