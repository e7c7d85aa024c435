"""What several tests of the store use: a filter, numbered messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from batonmq.store.policy import OneProperty


class Filter(NamedTuple):
    by_code: Callable[[int], bool] | None
    by_properties: Callable[[bytes], bool] | None = None
    weight: int = 1
    one_property: OneProperty | None = None


def numbered(opener, count, queues=1, **properties):
    return [opener.message(b"%d" % n, queue_id=n % queues, **properties) for n in range(count)]
