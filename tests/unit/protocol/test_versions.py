"""Releases of RocketMQ by their ordinals."""

from __future__ import annotations

import pytest

from batonmq.protocol.versions import version_name


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (513, "V5_5_0"),
        (512, "V5_5_0_SNAPSHOT"),
        (453, "V5_2_0"),
        (411, "V4_9_9"),
        (213, "V4_0_0"),
        (212, "V4_0_0_SNAPSHOT"),
        (200, "V3"),
        (-7, "V3"),
    ],
)
def test_the_name_of_an_ordinal(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
