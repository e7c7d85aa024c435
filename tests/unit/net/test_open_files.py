from __future__ import annotations

import resource

import pytest

from batonmq.net.open_files import RESERVE, raise_file_limit

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
