"""Where the queues of a mirrored topic go, and what offsets of groups become there; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.spark.jobs import mirror
from batonmq.spark.jobs.mirror import (
    Lane,
    Mirror,
    MirrorError,
    decode_lanes,
    encode_lanes,
    lanes_of,
    with_new_queues,
)


def queues(*places: tuple[str, int]) -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for broker, number in places]


SOURCES = queues(("a", 0), ("a", 1))


def test_offsets_differ_by_what_was_there_before() -> None:
    targets = queues(("x", 0), ("x", 1))
    lanes = lanes_of(
        dict(zip(SOURCES, (100, 0), strict=True)), targets, dict(zip(targets, (7, 0), strict=True))
    )
    assert lanes == [Lane(SOURCES[0], targets[0], 100, -93), Lane(SOURCES[1], targets[1], 0, 0)]
    assert lanes[0].translated(100) == 7 and lanes[0].translated(150) == 57
    assert lanes[0].translated(3) == 7  # what was not copied counts as consumed
    assert lanes[1].translated(0) == 0


def test_queues_that_share_a_target_have_no_translation() -> None:
    (target,) = queues(("x", 0))
    lanes = lanes_of(dict.fromkeys(SOURCES, 0), [target], {target: 0})
    assert [(lane.target, lane.difference) for lane in lanes] == [(target, None), (target, None)]
    assert lanes[0].translated(5) is None


def test_queues_that_the_source_gets_later_are_copied_from_their_first_message() -> None:
    targets = queues(("a", 0), ("a", 1), ("x", 0))
    ends = dict(zip(targets, (50, 9, 0), strict=True))
    lanes = lanes_of({SOURCES[0]: 10}, targets, ends)
    starts = dict(zip([*SOURCES, *queues(("c", 0), ("c", 1))], (10, 4, 0, 0), strict=True))
    found = with_new_queues(lanes, starts, targets, ends)
    assert found == [
        Lane(SOURCES[0], targets[0], 10, None),  # shares its target now
        Lane(SOURCES[1], targets[1], 4, 5),
        Lane(queues(("c", 0))[0], targets[2], 0, 0),
        Lane(queues(("c", 1))[0], targets[0], 0, None),
    ]
    assert with_new_queues(found, starts, targets, ends) == found


class Cluster:
    """A `QueueReader` of empty queues: those of the address that it is made with."""

    at: ClassVar[dict[str, list[MessageQueue]]] = {}

    def __init__(self, namesrv: str, **_: Any) -> None:
        self.known = self.at[namesrv]

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: Any) -> None: ...

    async def queues(self, topic: str) -> list[MessageQueue]:
        return self.known

    async def min_offset(self, queue: MessageQueue) -> int:
        return 0

    async def max_offset(self, queue: MessageQueue) -> int:
        return 0


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[MessageQueue]]:
    """Address -> queues."""
    monkeypatch.setattr(mirror, "QueueReader", Cluster)
    monkeypatch.setattr(Cluster, "at", {"a:1": SOURCES, "b:1": queues(("x", 0), ("x", 1))})
    return Cluster.at


async def test_a_running_mirror_ends_when_its_source_gets_queues(
    tmp_path: Path, clusters: dict[str, list[MessageQueue]]
) -> None:
    one = Mirror("a:1", "b:1", ("T",), tmp_path)
    lanes = await mirror.prepare(one)
    await mirror.check_queues(one, lanes)
    clusters["a:1"] = [*SOURCES, *queues(("a", 7))]
    with pytest.raises(MirrorError, match=r"created after the start: a:7; start the mirror again"):
        await mirror.check_queues(one, lanes)
    await mirror.check_queues(one, await mirror.prepare(one))


async def test_groups_can_be_translated_once_the_target_has_enough_queues(
    tmp_path: Path, clusters: dict[str, list[MessageQueue]]
) -> None:
    one = Mirror("a:1", "b:1", ("T",), tmp_path, groups=("g",))
    enough, clusters["b:1"] = clusters["b:1"], queues(("x", 0))
    with pytest.raises(MirrorError, match="the target has fewer queues than the source"):
        await mirror.prepare(one)
    clusters["b:1"] = enough
    assert [lane.difference for lane in await mirror.prepare(one)] == [0, 0]


def test_lanes_are_kept_between_runs(tmp_path: Path) -> None:
    one = Mirror("a:1", "b:1", ("T",), tmp_path)
    lanes = [Lane(SOURCES[0], SOURCES[1], 3, None), Lane(SOURCES[1], SOURCES[0], 4, -4)]
    data = encode_lanes(one.identity, lanes)
    assert decode_lanes(one.identity, data, tmp_path) == lanes
    with pytest.raises(MirrorError, match="belongs to another mirror"):
        decode_lanes(Mirror("a:1", "b:1", ("U",), tmp_path).identity, data, tmp_path)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"mirror": "m", "lanes": [{"topic": "T"}]}', b"\xff"])
def test_a_damaged_state_is_named(tmp_path: Path, data: Any) -> None:
    with pytest.raises(MirrorError, match="is damaged"):
        decode_lanes("m", data, tmp_path)
