"""Offsets of the clients of broadcasting groups."""

from __future__ import annotations

import pytest

from batonmq.broker.tables import broadcast
from batonmq.broker.tables.broadcast import BroadcastOffsets


def first(table: BroadcastOffsets, offset: int, client: str = "c", proxy: bool = False) -> int | None:
    return table.first_offset("T", "g", 0, offset, client, proxy)


def test_a_client_that_moves_continues_at_its_offset() -> None:
    table = BroadcastOffsets()
    assert first(table, 0) is None and first(table, -1) is None
    table.update("T", "g", 0, 5, "c", False, 1)
    table.update("T", "g", 0, 3, "c", False, 2)
    assert first(table, 0) is None, "it has not moved"
    assert first(table, 0, proxy=True) == 5
    table.update("T", "g", 0, 7, "c", True, 3)
    assert first(table, 0) == 7 and first(table, 0, proxy=True) is None
    assert table.first_offset("T", "g", 1, 0, "c", False) == -1


def test_a_proxy_without_an_offset_asks_for_one() -> None:
    table = BroadcastOffsets()
    assert first(table, -1, proxy=True) == -1
    table.update("T", "g", 0, 5, "c", True, 1)
    assert first(table, -1, proxy=True) == 5
    assert first(table, -1, "d", proxy=True) == -1


def test_the_least_offsets_of_live_clients_are_reported_and_silent_ones_forgotten() -> None:
    table = BroadcastOffsets()
    table.update("T", "g", 0, 5, "c", False, 0)
    table.update("T", "g", 0, 3, "d", False, 50)
    table.update("T", "g", 1, 9, "d", False, 50)

    def sweep(now_ms: int, *online: str) -> dict[tuple[str, str], dict[int, int]]:
        return table.sweep(lambda group, client: client in online, now_ms, 100, 300)

    assert sweep(99) == {("T", "g"): {0: 3, 1: 9}} and len(table) == 2
    assert sweep(100) == {("T", "g"): {0: 3, 1: 9}} and len(table) == 1
    assert sweep(349, "d") == {("T", "g"): {0: 3, 1: 9}} and len(table) == 1
    assert sweep(350, "d") == {("T", "g"): {0: 3, 1: 9}} and len(table) == 0
    assert sweep(999) == {}


def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "MAX_CLIENTS", 2)
    table = BroadcastOffsets()
    for number in range(5):
        table.update(f"T{number}", "g", 0, 1, "c", False, 0)
    table.update("T0", "g", 0, 2, "c", False, 0)
    assert len(table) == 2 and table.first_offset("T0", "g", 0, 0, "c", True) == 2
    assert table.sweep(lambda group, client: False, 1000, 1, 1) == {} and len(table) == 0


def test_a_client_id_of_megabytes_is_not_kept() -> None:
    table = BroadcastOffsets()
    table.update("T", "g", 0, 1, "c" * 1_024, True, 0)
    table.update("T", "g", 0, 1, "c" * 1_025, True, 0)
    assert len(table) == 1
