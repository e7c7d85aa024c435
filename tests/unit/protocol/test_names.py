"""Names of topics and groups, and namespaces."""

from __future__ import annotations

import pytest

from batonmq.protocol import names
from batonmq.protocol.errors import MQError

TOPICS = [
    ("orders", None),
    ("a|b%c-d_E9", None),
    ("x" * 127, None),
    ("x" * 128, "longer than topic max length: 127"),
    ("%RETRY%" + "x" * 248, None),
    ("%RETRY%" + "x" * 249, "longer than topic max length: 255"),
    ("%DLQ%" + "x" * 251, "longer"),
    ("", "blank"),
    ("  ", "blank"),
    (None, "blank"),
    ("a b", "illegal"),
    ("täg", "illegal"),
    ("a/b", "illegal"),
    ("a\n", "illegal"),
    ("a.b", "illegal"),
    ("%LMQ%a", None),
    ("%LMQ%", "%LMQ%, is illegal: the name of the light queue behind it is missing"),
]


@pytest.mark.parametrize(("topic", "why"), TOPICS)
def test_topic_names(topic: str | None, why: str | None) -> None:
    error = names.topic_error(topic)
    assert (error is None) if why is None else (error is not None and why in error)
    if why is not None:
        with pytest.raises(MQError, match=why):
            names.check_topic(topic)


GROUPS = [("g", None), ("g" * 120, None), ("g" * 121, "longer"), ("", "blank"), ("a@b", "illegal")]


@pytest.mark.parametrize(("group", "why"), GROUPS)
def test_group_names(group: str, why: str | None) -> None:
    error = names.group_error(group)
    assert (error is None) if why is None else (error is not None and why in error)
    if why is not None:
        with pytest.raises(MQError, match=why):
            names.check_group(group)


@pytest.mark.parametrize("v2", [False, True])
def test_the_group_of_a_retry_topic(v2: bool) -> None:
    assert names.group_of_retry_topic(names.retry_topic("g_1")) == "g_1"
    of_pops = names.group_of_retry_topic(names.pop_retry_topic("g_1", "t", v2=v2))
    assert of_pops == ("g_1" if v2 else "g_1_t")


def test_system_topics_and_prefixes() -> None:
    assert names.is_system_topic("TBW102") and names.is_system_topic("rmq_sys_wheel_timer")
    assert not names.is_system_topic("orders")
    assert names.NOT_ALLOWED_TO_SEND < names.SYSTEM_TOPICS
    assert names.retry_topic("g") == "%RETRY%g" and names.is_retry_topic("%RETRY%g")
    assert names.dead_letter_topic("g") == "%DLQ%g" and names.is_dead_letter_topic("%DLQ%g")
