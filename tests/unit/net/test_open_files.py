from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest

from batonmq.net.open_files import RESERVE, raise_file_limit, spare_file

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "raised_to"),
    [
        (1_024, 1_048_576, 10_000, 10_000, 10_000 + RESERVE),
        (1_024, NO_LIMIT, 10_000, 10_000, 10_000 + RESERVE),
        (1_024, 4_096, 10_000, 4_096 - RESERVE, 4_096),
        (65_536, 65_536, 10_000, 10_000, None),
        (NO_LIMIT, NO_LIMIT, 10_000, 10_000, None),
        (100, 100, 10_000, 1, 100),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, allowed: int, raised_to: int | None
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    assert raise_file_limit(wanted) == allowed
    assert raised == ([] if raised_to is None else [(raised_to, hard)])


class Accepted(asyncio.BaseTransport):
    """An accepted connection; descriptor -1: one without a socket."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" and self.descriptor >= 0 else default

    def fileno(self) -> int:
        return self.descriptor


@pytest.mark.parametrize(
    ("soft", "descriptor", "spare"),
    [
        (65_536, 65_536 - RESERVE - 1, True),
        (65_536, 65_536 - RESERVE, False),
        (1_024, 511, True),
        (1_024, 512, False),
        (100, 49, True),
        (100, 50, False),
        (NO_LIMIT, 1 << 20, True),
        (1, -1, True),
    ],
)
def test_the_last_descriptors_are_kept_for_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, descriptor: int, spare: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    assert spare_file(Accepted(descriptor)) is spare
