"""Where a broker finds controllers that joined the group after it was configured."""

from __future__ import annotations

import pytest

from batonmq.broker.controllers import members_of
from batonmq.protocol.headers.controller import GetMetadataReply


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        ("n0:h0:9877;n3:h3:9877;", ["h0:9877", "h3:9877"]),
        ("h0:9877;h3:9877;", ["h0:9877", "h3:9877"]),
        ("h0:9880;h3:9880;", []),  # Raft ports, as RocketMQ's jRaft controllers say it: not for brokers
        ("", []),
        ("nonsense", []),
    ],
)
def test_members_of_a_group_of_controllers(peers: str, expected: list[str]) -> None:
    metadata = GetMetadataReply(
        group="g", controller_leader_id="x", controller_leader_address="h0:9877", is_leader=True, peers=peers
    )
    assert members_of(metadata) == expected
