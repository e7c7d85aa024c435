"""Where the queues of a mirrored topic go, and what offsets of groups become there; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("new", [(), (("a", 7),)])
async def test_a_running_mirror_ends_when_its_source_gets_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: tuple[tuple[str, int], ...]
) -> None:
    class Source:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def __aenter__(self) -> Source:
            return self

        async def __aexit__(self, *_: Any) -> None: ...

        async def queues(self, topic: str) -> list[MessageQueue]:
            return [*SOURCES, *queues(*new)]

    monkeypatch.setattr(mirror, "QueueReader", Source)
    one = Mirror("a:1", "b:1", ("T",), tmp_path)
    lanes = [Lane(source, source, 0, 0) for source in SOURCES]
    if not new:
        await mirror.check_queues(one, lanes)
        return
    with pytest.raises(MirrorError, match=r"created after the start: a:7; start the mirror again"):
        await mirror.check_queues(one, lanes)


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
