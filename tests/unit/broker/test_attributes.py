"""Attribute changes: the same texts, results and refusals as RocketMQ's tools show."""

from __future__ import annotations

import pytest

from batonmq.broker.tables.attributes import (
    GROUP_ATTRIBUTES,
    NOT_BUILT,
    TOPIC_ATTRIBUTES,
    apply_change,
    parse_change,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (None, {}),
        ("", {}),
        ("+message.type=FIFO", {"+message.type": "FIFO"}),
        ("+a=1,-b,+c=2", {"+a": "1", "-b": "", "+c": "2"}),
    ],
)
def test_parse(text: str | None, change: dict[str, str]) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("message.type", "delete attribute format is wrong: message.type"),
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+a=1,+a=2", "key duplication: +a"),
    ],
)
def test_parse_refuses(text: str, remark: str) -> None:
    with pytest.raises(MQError) as refused:
        parse_change(text)
    assert (refused.value.code, refused.value.remark) == (ResponseCode.SYSTEM_ERROR, remark)


@pytest.mark.parametrize(
    ("current", "change", "after"),
    [
        (None, {}, {}),
        (None, {"+message.type": "FIFO"}, {"message.type": "FIFO"}),
        (None, {"+queue.type": "SimpleCQ"}, {"queue.type": "SimpleCQ"}),
        (None, {"+cleanup.policy": "DELETE"}, {"cleanup.policy": "DELETE"}),
        ({}, {"+message.type": "DELAY"}, {"message.type": "DELAY"}),
        ({"message.type": "FIFO"}, {"+message.type": "NORMAL"}, {"message.type": "NORMAL"}),
        ({"message.type": "FIFO"}, {"-message.type": ""}, {}),
        ({"message.type": "FIFO"}, {}, {"message.type": "FIFO"}),
        ({}, {"+reserve.time": "-1"}, {"reserve.time": "-1"}),
    ],
)
def test_apply(current: dict[str, str] | None, change: dict[str, str], after: dict[str, str]) -> None:
    assert apply_change(TOPIC_ATTRIBUTES, current, change) == after


@pytest.mark.parametrize(
    ("current", "change", "remark"),
    [
        (
            None,
            {"+message.type": "NOPE"},
            "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL]",
        ),
        (None, {"+foo": "1"}, "unsupported key: foo"),
        (
            None,
            {"-message.type": ""},
            "only add attribute is supported while creating topic. key: message.type",
        ),
        ({}, {"-queue.type": ""}, "attempt to delete a nonexistent key: queue.type"),
        ({}, {"+queue.type": "SimpleCQ"}, "attempt to update an unchangeable attribute. key: queue.type"),
        ({"a": "1"}, {"+a": "1", "-a": ""}, "unsupported key: a"),
        ({}, {"message.type": "FIFO"}, "wrong format key: essage.type"),
        ({}, {"+": "1"}, "kv string format wrong."),
        ({}, {"+a-b": "1"}, "kv string format wrong."),
        ({}, {"+reserve.time": "-2"}, f"value is not in range(-1, {2**63 - 1})"),
        ({}, {"+reserve.time": "soon"}, 'For input string: "soon"'),
    ],
)
def test_apply_refuses(current: dict[str, str] | None, change: dict[str, str], remark: str) -> None:
    with pytest.raises(MQError) as refused:
        apply_change(TOPIC_ATTRIBUTES, current, change)
    assert refused.value.remark == remark


@pytest.mark.parametrize("value", ["-1", "101", "9" * 5000, "half", ""])
def test_a_group_s_priority_factor_is_a_percentage(value: str) -> None:
    assert apply_change(GROUP_ATTRIBUTES, None, {"+priority.factor": "0"}) == {"priority.factor": "0"}
    with pytest.raises(MQError):
        apply_change(GROUP_ATTRIBUTES, {}, {"+priority.factor": value})


@pytest.mark.parametrize("change", [{f"+{key}": value} for key, value in NOT_BUILT], ids=str)
def test_values_without_effect_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(MQError) as refused:
        apply_change(TOPIC_ATTRIBUTES, None, change)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
    ((key, value),) = change.items()
    assert refused.value.remark.startswith(f"{key[1:]}={value} is not supported by this broker: ")
