"""Attributes of topics and groups, such as ``+message.type=FIFO``: parses, checks and applies changes.

A change is a map from ``+key`` (set) or ``-key`` (remove) to a value; stored attributes have the bare key.
Source: `TopicAttributes` and `SubscriptionGroupAttributes`; the remarks are those that its tools show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES = ("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL")

NOT_BUILT: Mapping[tuple[str, str], str] = {
    ("queue.type", "BatchCQ"): "batches stay whole in the queue",
    ("cleanup.policy", "COMPACTION"): "the store keeps the last message of each key",
    (MESSAGE_TYPE, "LITE"): "the topic has lite topics",
}
"""Values that RocketMQ knows and this broker does not carry out, with what they would mean."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One known key: whether it may change after creation, and its values (None: a number in a range)."""

    changeable: bool
    values: tuple[str, ...] | None
    least: int = -1
    most: int = (1 << 63) - 1

    def check(self, value: str) -> None:
        if self.values is not None:
            if value not in self.values:
                raise _refused(f"value is not in set: [{', '.join(self.values)}]")
            return
        try:
            number = int(value)
        except ValueError:
            raise _refused(f'For input string: "{value}"') from None
        if not self.least <= number <= self.most:
            raise _refused(f"value is not in range({self.least}, {self.most})")


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(changeable=False, values=("BatchCQ", "SimpleCQ")),
    "cleanup.policy": Attribute(changeable=False, values=("DELETE", "COMPACTION")),
    MESSAGE_TYPE: Attribute(changeable=True, values=MESSAGE_TYPES),
    "reserve.time": Attribute(changeable=True, values=None),
}
PRIORITY_FACTOR: Final = "priority.factor"
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    # Percent of a group's pops that take the queues of a topic by priority.
    PRIORITY_FACTOR: Attribute(changeable=True, values=None, least=0, most=100),
}


def _refused(remark: str) -> MQError:
    return MQError(ResponseCode.SYSTEM_ERROR, remark)


def check_built(key: str, value: str) -> None:
    """Raises MQError for a value that would be stored without effect."""
    effect = NOT_BUILT.get((key, value))
    if effect is not None:
        raise MQError(
            ResponseCode.INVALID_PARAMETER, f"{key}={value} is not supported by this broker: {effect}"
        )


def not_built(attributes: Mapping[str, str] | None) -> str:
    """The stored attributes that this broker does not carry out, for a log line; empty if there are none."""
    return ", ".join(f"{k}={v}" for k, v in (attributes or {}).items() if (k, v) in NOT_BUILT)


def parse_change(text: str | None) -> dict[str, str]:
    """``+k1=v1,+k2=v2,-k3`` as a change map. Raises MQError on anything else."""
    change: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        key, equals, value = part.partition("=")
        if equals and not key.startswith("+"):
            raise _refused(f"add/alter attribute format is wrong: {key}")
        if not equals and not key.startswith("-"):
            raise _refused(f"delete attribute format is wrong: {key}")
        if key in change:
            raise _refused(f"key duplication: {key}")
        change[key] = value
    return change


def apply_change(
    known: Mapping[str, Attribute],
    current: Mapping[str, str] | None,
    change: Mapping[str, str],
) -> dict[str, str]:
    """The attributes after `change`; `current` is None if the topic does not exist yet. Raises MQError."""
    after = dict(current or {})
    seen: set[str] = set()
    for signed, value in change.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key}")
        seen.add(key)
        if current is None and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {key}")
        if sign == "-" and key not in after:
            raise _refused(f"attempt to delete a nonexistent key: {key}")
        attribute = known.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key}")
        if current is not None and not attribute.changeable:
            raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "+":
            attribute.check(value)
            check_built(key, value)
            after[key] = value
        else:
            del after[key]
    return after
