"""Turns the tree of an expression into one function over the encoded properties of a message.

Every node becomes a closure. A condition gives True, False or None (unknown); a value gives bytes (UTF-8), a
number, a boolean or None. A message matches if the whole is True; if a value cannot be compared
(`EvaluationError`), the whole is not. A few properties are looked up in the encoded form, so nothing is
decoded that the expression does not need. Before many lookups, and if they are long, all are decoded once: a
sender could make searches in the encoded form slow. An expression about one property is evaluated once for
each of its values (`one_property.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from batonmq.broker.sql import tree
from batonmq.broker.sql.errors import EvaluationError, SqlError
from batonmq.broker.sql.numbers import (
    INT_MAX,
    LONG_MAX,
    compare_doubles,
    parse_boolean,
    parse_double,
    parse_integer,
)
from batonmq.broker.sql.one_property import MAX_ENCODED, OneProperty, decoded
from batonmq.broker.sql.parser import parse
from batonmq.broker.sql.tree import NUMBERS, Kind, Node
from batonmq.protocol.message.properties import find_property

Properties: TypeAlias = bytes | dict[bytes, bytes]
"""Of a message: encoded, or decoded if they are long or looked up often."""
Test: TypeAlias = Callable[[Properties], bool | None]
Getter: TypeAlias = Callable[[Properties], Any]
Compare: TypeAlias = Callable[[Any, Any], int]
"""Of two values that are not None: below 0, 0 or above 0. Raises `EvaluationError`."""

CACHED: Final = 64
"""Compiled expressions that are kept; each takes commonly a kilobyte, and at most two megabytes."""
MAX_LOOKUPS: Final = 4
"""Beyond so many lookups in an expression the properties are decoded first."""
_REPLACEMENT: Final = "\ufffd"
"""What Java reads in place of bytes that are not UTF-8."""
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_TESTS: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": lambda text, search: text.startswith(search),
    "ENDSWITH": lambda text, search: text.endswith(search),
}


@lru_cache(maxsize=CACHED)
def compile_expression(expression: str) -> Callable[[bytes], bool]:
    """A function that takes encoded properties and says whether the message matches. Raises `SqlError`."""
    try:
        expression.encode()
    except UnicodeEncodeError:
        raise SqlError("the expression has a character that is not Unicode text") from None
    node, lookups = parse(expression)
    test = _test(node)
    clean = _REPLACEMENT in expression
    if len(set(lookups)) == 1 and not clean:
        name = lookups[0].encode()

        def decides(value: bytes | None) -> bool:
            try:
                return test({} if value is None else {name: value}) is True
            except EvaluationError:
                return False

        return OneProperty(lookups[0], decides)
    longest = MAX_ENCODED if len(lookups) <= MAX_LOOKUPS else 0

    def matches(properties: bytes) -> bool:
        if clean:
            properties = str(properties, "utf-8", "replace").encode()
        try:
            return test(properties if len(properties) <= longest else decoded(properties)) is True
        except EvaluationError:
            return False

    return matches


@lru_cache(maxsize=CACHED)
def weight_of(expression: str) -> int:
    """How much more work an expression is than a common one. Raises `SqlError`."""
    return 1 + len(parse(expression)[1]) // MAX_LOOKUPS


def _find(properties: Properties, name: bytes) -> bytes | None:
    """The value of a property; None if it is missing."""
    if isinstance(properties, bytes):
        return find_property(properties, name)
    return properties.get(name)


# -- conditions


def _test(node: Node) -> Test:
    match node:
        case tree.Constant():
            return _always(node.value is True if node.value is not None else None)
        case tree.Truth():
            return _truth(node.operand.name.encode())
        case tree.Not():
            return _not(_test(node.operand))
        case tree.And():
            return _range_of(node.parts) or _until(False, [_test(part) for part in node.parts])
        case tree.Or():
            return _until(True, [_test(part) for part in node.parts])
        case tree.Equal():
            return _equal(node.left, node.right)
        case tree.Order():
            return _order(node)
        case tree.In():
            values = frozenset(value.encode() for value in node.values)
            return _in(node.operand.name.encode(), values, node.negated)
        case tree.TextTest():
            return _text_test(node)
    raise AssertionError(f"{type(node).__name__} is not a condition")


def _always(value: bool | None) -> Test:
    return lambda properties: value


def _truth(name: bytes) -> Test:
    return lambda properties: None if _find(properties, name) is None else False


def _not(inner: Test) -> Test:
    def negate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return negate


def _until(decides: bool, parts: list[Test]) -> Test:
    """AND ends at the first False, OR at the first True; without one, None if a part is None."""
    if len(parts) == 2:
        first, second = parts

        def pair(properties: Properties) -> bool | None:
            one = first(properties)
            if one is decides:
                return decides
            two = second(properties)
            if two is decides:
                return decides
            return None if one is None or two is None else not decides

        return pair

    def chain(properties: Properties) -> bool | None:
        result: bool | None = not decides
        for part in parts:
            value = part(properties)
            if value is decides:
                return decides
            if value is None:
                result = None
        return result

    return chain


def _in(name: bytes, values: frozenset[bytes], negated: bool) -> Test:
    def contains(properties: Properties) -> bool | None:
        value = _find(properties, name)
        return None if value is None else (value in values) is not negated

    return contains


def _text_test(node: tree.TextTest) -> Test:
    """Of anything but a string both the test and its NOT are false; so are they for an empty search."""
    if not node.search:
        return _always(False)
    kind, get = _value(node.operand)
    search, negated = node.search.encode(), node.negated
    found = _TEXT_TESTS[node.word]

    def test(properties: Properties) -> bool | None:
        value = get(properties)
        return value is not None and found(value, search) is not negated

    def other(properties: Properties) -> bool | None:
        get(properties)
        return False

    return test if kind is Kind.STRING else other


def _equal(left: Node, right: Node) -> Test:
    if isinstance(left, tree.Property) and isinstance(right, tree.Constant) and right.kind is Kind.STRING:
        return _equals_text(left.name.encode(), str(right.value).encode())
    left_kind, get_left = _value(left)
    right_kind, get_right = _value(right)
    compare = _comparison(left_kind, right_kind, _compare_equal)

    def equal(properties: Properties) -> bool | None:
        one, two = get_left(properties), get_right(properties)
        if one is None:
            return True if two is None else None  # missing = 'x' is unknown, but 'x' = missing is false
        return two is not None and compare(one, two) == 0

    return equal


def _equals_text(name: bytes, text: bytes) -> Test:
    def equal(properties: Properties) -> bool | None:
        value = _find(properties, name)
        return None if value is None else value == text

    return equal


def _order(node: tree.Order) -> Test:
    holds = _OPERATORS[node.operator]
    left_kind, get_left = _value(node.left)
    right_kind, get_right = _value(node.right)
    if isinstance(node.left, tree.Property) and right_kind is Kind.INTEGER:
        return _order_of_integer(node.left.name.encode(), holds, get_right(b""))
    compare = _comparison(left_kind, right_kind, _compare_as_doubles)

    def order(properties: Properties) -> bool | None:
        one = get_left(properties)
        if one is None:
            return None
        two = get_right(properties)
        return None if two is None else holds(compare(one, two), 0)

    return order


def _order_of_integer(name: bytes, holds: Callable[[Any, Any], bool], number: int) -> Test:
    def order(properties: Properties) -> bool | None:
        value = _find(properties, name)
        return None if value is None else holds(parse_integer(value, INT_MAX), number)

    return order


def _range_of(parts: Sequence[Node]) -> Test | None:
    """BETWEEN two integers, and whatever means the same, with one lookup; None for anything else."""
    tests: list[tuple[Callable[[Any, Any], bool], int]] = []
    names: set[str] = set()
    for part in parts:
        if not isinstance(part, tree.Order) or not isinstance(part.left, tree.Property):
            return None
        kind, get = _value(part.right)
        if kind is not Kind.INTEGER:
            return None
        names.add(part.left.name)
        tests.append((_OPERATORS[part.operator], get(b"")))
    if len(tests) != 2 or len(names) != 1:
        return None
    (holds, number), (holds_too, other) = tests
    name = names.pop().encode()

    def within(properties: Properties) -> bool | None:
        value = _find(properties, name)
        if value is None:
            return None
        found = parse_integer(value, INT_MAX)
        return holds(found, number) and holds_too(found, other)

    return within


# -- values


def _value(node: Node) -> tuple[Kind, Getter]:
    """The type of a node's value, and how to get it."""
    if isinstance(node, tree.Property):
        name = node.name.encode()
        return Kind.STRING, lambda properties: _find(properties, name)
    if isinstance(node, tree.Constant):
        value = node.value.encode() if isinstance(node.value, str) else node.value
        return node.kind, lambda properties: value
    if isinstance(node, tree.Negative):
        kind, get = _value(node.operand)
        if kind in NUMBERS:  # only constants are numbers
            number = -get(b"")
            return kind, lambda properties: number
        return Kind.NOTHING, lambda properties: _nothing(get(properties))
    return Kind.BOOLEAN, _test(node)


def _nothing(value: object) -> None:
    """Null, once the value was read: reading it may raise `EvaluationError`."""


def _comparison(left: Kind, right: Kind, of_strings: Compare) -> Compare:
    """How values of these types compare. Source: `ComparisonExpression.__compare`."""
    if left is right is Kind.STRING:
        return of_strings
    if left in NUMBERS and right in NUMBERS:
        if Kind.DOUBLE in (left, right):
            return lambda one, two: compare_doubles(float(one), float(two))
        return _compare
    if left is Kind.STRING:
        if right in NUMBERS:
            read, compare = _reader(right), _comparison(right, right, _compare)
            return lambda one, two: compare(read(one), two)
        return lambda one, two: _compare(parse_boolean(one), two)
    if right is Kind.STRING:
        if left in NUMBERS:
            read, compare = _reader(left), _comparison(left, left, _compare)
            return lambda one, two: compare(one, read(two))
        return _boolean_before_text
    if left is right:
        return _compare
    return lambda one, two: -1  # a boolean and a number


def _reader(kind: Kind) -> Callable[[bytes], int | float]:
    if kind is Kind.DOUBLE:
        return parse_double
    most = INT_MAX if kind is Kind.INTEGER else LONG_MAX
    return lambda text: parse_integer(text, most)


def _compare(one: Any, two: Any) -> int:
    return int(one > two) - int(one < two)


def _compare_equal(one: bytes, two: bytes) -> int:
    """0 for equal strings; the order of others does not matter."""
    return 0 if one == two else 1


def _compare_as_doubles(one: bytes, two: bytes) -> int:
    return compare_doubles(parse_double(one), parse_double(two))


def _boolean_before_text(one: bool, two: bytes) -> int:
    """RocketMQ fails here with a ClassCastException; the other way round it converts the string."""
    raise EvaluationError("a boolean is compared with a string")
