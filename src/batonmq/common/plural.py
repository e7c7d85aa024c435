"""Numbers in texts for readers: ``1 batch``, ``2 batches``."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """`number` with what it counts. `many` defaults to `one` with an ``s``; both may include a verb, as in
    ``counted(skipped, "day was", "days were")``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
