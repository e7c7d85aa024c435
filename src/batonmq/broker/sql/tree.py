"""The tree of an expression, with the type rules that are checked while it is built.

Source: the classes of `org.apache.rocketmq.filter.expression`. Constants keep Java's type, because it decides
how a property is converted. A property is a string or missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from batonmq.broker.sql.errors import SqlError
from batonmq.broker.sql.numbers import INT_MAX, LONG_MAX, compare_doubles

MAX_DEPTH: Final = 100
"""Nesting of an expression; RocketMQ's limit is the stack of a thread, some thousand levels."""

MAX_TERMS: Final = 500
"""Comparisons and tests of an expression; RocketMQ sets no limit. A list behind IN is one, at any length. A
pull evaluates them for up to 800 messages in one loop turn, at about 0.3 us each."""


class Kind(Enum):
    """Type of a value, known before any message is seen."""

    STRING = "string"
    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    BOOLEAN = "Boolean"
    NOTHING = "null"
    """Always null."""


NUMBERS: Final = frozenset({Kind.INTEGER, Kind.LONG, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Node:
    """An expression. `depth`: nodes on the longest way down; raises `SqlError` above `MAX_DEPTH`."""

    depth: int = field(default=1, init=False)

    def _over(self, *children: Node) -> None:
        depth = 1 + max(child.depth for child in children)
        if depth > MAX_DEPTH:
            raise SqlError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        object.__setattr__(self, "depth", depth)


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A literal. TRUE, FALSE and NULL are conditions, too."""

    value: str | int | float | bool | None
    kind: Kind

    @property
    def is_condition(self) -> bool:
        return self.kind in (Kind.BOOLEAN, Kind.NOTHING)

    def __str__(self) -> str:
        if self.kind is Kind.NOTHING:
            return "NULL"
        if isinstance(self.value, bool):
            return str(self.value).upper()
        return f"'{self.value[:40]}'" if isinstance(self.value, str) else str(self.value)


@dataclass(frozen=True, slots=True)
class Property(Node):
    name: str

    def __str__(self) -> str:
        return self.name[:80]


@dataclass(frozen=True, slots=True)
class Negative(Node):
    """A minus sign: of a number its negative, of anything else null."""

    operand: Node

    def __post_init__(self) -> None:
        self._over(self.operand)

    def __str__(self) -> str:
        return f"-{self.operand}"


@dataclass(frozen=True, slots=True)
class Condition(Node):
    """Is true, false or null (unknown)."""

    def __str__(self) -> str:
        return "a condition"


@dataclass(frozen=True, slots=True)
class Truth(Condition):
    """A property that stands alone: false, for its string is not a boolean; null if it is missing."""

    operand: Property

    def __post_init__(self) -> None:
        self._over(self.operand)


@dataclass(frozen=True, slots=True)
class Not(Condition):
    operand: Node

    def __post_init__(self) -> None:
        self._over(self.operand)


@dataclass(frozen=True, slots=True)
class And(Condition):
    parts: Sequence[Node]

    def __post_init__(self) -> None:
        self._over(*self.parts)


@dataclass(frozen=True, slots=True)
class Or(Condition):
    parts: Sequence[Node]

    def __post_init__(self) -> None:
        self._over(*self.parts)


@dataclass(frozen=True, slots=True)
class Equal(Condition):
    left: Node
    right: Node

    def __post_init__(self) -> None:
        self._over(self.left, self.right)


@dataclass(frozen=True, slots=True)
class Order(Condition):
    """`operator`: one of ``< <= > >=``."""

    operator: str
    left: Node
    right: Node

    def __post_init__(self) -> None:
        self._over(self.left, self.right)


@dataclass(frozen=True, slots=True)
class In(Condition):
    operand: Property
    values: frozenset[str]
    negated: bool

    def __post_init__(self) -> None:
        self._over(self.operand)


@dataclass(frozen=True, slots=True)
class TextTest(Condition):
    """`word`: CONTAINS, STARTSWITH or ENDSWITH."""

    word: str
    operand: Node
    search: str
    negated: bool

    def __post_init__(self) -> None:
        self._over(self.operand)


NULL: Final = Constant(None, Kind.NOTHING)
TRUE: Final = Constant(True, Kind.BOOLEAN)
FALSE: Final = Constant(False, Kind.BOOLEAN)


def is_condition(node: Node) -> bool:
    """Whether the value is a boolean or null (`BooleanExpression`)."""
    return isinstance(node, Condition) or (isinstance(node, Constant) and node.is_condition)


def condition(node: Node) -> Node:
    """The node where a condition is needed. Raises `SqlError`."""
    if is_condition(node):
        return node
    if isinstance(node, Property):
        return Truth(node)
    raise SqlError(f"{node} is not a condition")


def equal(left: Node, right: Node) -> Equal:
    """`left = right`. Raises `SqlError` for NULL, and for TRUE or FALSE before another constant."""
    for operand in (left, right):
        if isinstance(operand, Constant) and operand.kind is Kind.NOTHING:
            raise SqlError("NULL cannot be compared, use IS NULL")
    constants = isinstance(left, Constant) and isinstance(right, Constant)
    if constants and is_condition(left) and not is_condition(right):
        raise SqlError(f"{left} cannot be compared with {right}")
    return Equal(left, right)


def order(operator: str, left: Node, right: Node) -> Order:
    """`left < right` and so on. Raises `SqlError` for constants other than numbers, and conditions."""
    for operand in (left, right):
        number = not isinstance(operand, Constant) or operand.kind in NUMBERS
        if not number or is_condition(operand):
            raise SqlError(f"{operand} cannot be compared by {operator}")
    return Order(operator, left, right)


def between(value: Node, low: Node, high: Node) -> And:
    """`value BETWEEN low AND high`. Raises `SqlError`, also for numbers in the wrong order."""
    result = And((order(">=", value, low), order("<=", value, high)))
    if isinstance(low, Constant) and isinstance(high, Constant) and _compare_numbers(low, high) > 0:
        raise SqlError(f"BETWEEN {low} AND {high}: the first number must not be above the second")
    return result


def not_between(value: Node, low: Node, high: Node) -> Or:
    """`value NOT BETWEEN low AND high`. Raises `SqlError`."""
    return Or((order("<", value, low), order(">", value, high)))


def one_of(operand: Node, values: Sequence[str], negated: bool) -> In:
    """`operand [NOT] IN (values)`. Raises `SqlError` unless it is a property."""
    if not isinstance(operand, Property):
        raise SqlError(f"IN needs a property on its left, not {operand}")
    return In(operand, frozenset(values), negated)


def integer(text: str) -> Constant:
    """A literal like ``12`` or ``12L``. Raises `SqlError` above 64 bits."""
    digits = text.rstrip("lL")
    value = int(digits) if len(digits) < 20 else LONG_MAX + 1
    if value > LONG_MAX:
        raise SqlError(f"{text[:40]} is above the largest 64-bit number")
    return Constant(value, Kind.INTEGER if value <= INT_MAX else Kind.LONG)


def double(text: str) -> Constant:
    """A literal like ``1.5``. Raises `SqlError` for 0.0, as RocketMQ does, and above the range."""
    value = float(text)
    if value == float("inf"):
        raise SqlError(f"{text[:40]} is above the largest double")
    if value == 0.0:
        raise SqlError(f"{text[:40]} is below the smallest positive double; write 0 for zero")
    return Constant(value, Kind.DOUBLE)


def _compare_numbers(left: Constant, right: Constant) -> int:
    a, b = left.value, right.value
    assert isinstance(a, int | float) and isinstance(b, int | float)
    if isinstance(a, float) or isinstance(b, float):
        return compare_doubles(float(a), float(b))
    return (a > b) - (a < b)
