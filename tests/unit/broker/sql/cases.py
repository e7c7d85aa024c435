"""Random expressions and properties, with an evaluator that is slow and obvious.

Expressions are trees of tuples; `text_of` writes one, `evaluate` follows the rules of RocketMQ's classes step
by step over a dictionary. Both share nothing with `batonmq.broker.sql`.
"""

from __future__ import annotations

import random
import re
from typing import Any

NAMES = ("a", "b", "c1", "$d", "_e", "TAGS", "missing")
STRINGS = (
    "",
    "x",
    "hello",
    "5",
    "-5",
    "5.5",
    "true",
    "TRUE",
    "it's",
    "3000000000",
    "1e3",
    " 7 ",
    "héé",
    "NaN",
    "0",
)
NUMBERS = (
    "0",
    "1",
    "5",
    "7L",
    "2147483647",
    "2147483648",
    "3000000000",
    "9223372036854775807",
    "0.5",
    "5.5",
    "5.",
    ".5",
    "1E3",
    "1e-3",
    "5.0",
)
VALUES = (
    *STRINGS[1:],
    "+5",
    "007",
    "1.5f",
    "0x1p3",
    "Infinity",
    "-0.0",
    "0.0",
    "99999999999999999999",
    "٣",
    "hello world",
)
ORDERS = ("<", "<=", ">", ">=")


class Failure(Exception):
    """Evaluation fails: no match."""


def random_properties(rng: random.Random) -> dict[str, str]:
    return {name: rng.choice(VALUES) for name in NAMES[:-1] if rng.random() < 0.7}


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def random_value(rng: random.Random, depth: int) -> tuple[Any, ...]:
    """An operand of any kind."""
    kind = rng.random()
    if kind < 0.45:
        return ("property", rng.choice(NAMES))
    if kind < 0.65:
        return ("number", rng.choice(NUMBERS))
    if kind < 0.8:
        return ("string", rng.choice(STRINGS))
    if kind < 0.86:
        return ("boolean", rng.random() < 0.5)
    if kind < 0.93 or depth <= 0:
        return ("negative", random_value(rng, depth - 1) if depth > 0 else ("number", rng.choice(NUMBERS)))
    return random_condition(rng, depth - 1)


def random_operand(rng: random.Random) -> tuple[Any, ...]:
    """An operand that < and > accept."""
    kind = rng.random()
    if kind < 0.55:
        return ("property", rng.choice(NAMES))
    if kind < 0.9:
        return ("number", rng.choice(NUMBERS))
    return ("negative", random_operand(rng))


def random_condition(rng: random.Random, depth: int) -> tuple[Any, ...]:
    kind = rng.randrange(10 if depth > 0 else 7)
    if kind == 0:
        return ("equal", rng.choice(("=", "<>")), random_value(rng, depth), random_value(rng, depth))
    if kind == 1:
        return ("order", rng.choice(ORDERS), random_operand(rng), random_operand(rng))
    if kind == 2:
        return ("null", rng.random() < 0.5, random_value(rng, depth))
    if kind == 3:
        count = rng.choice((1, 2, 6))
        return ("in", rng.random() < 0.5, rng.choice(NAMES), [rng.choice(STRINGS) for _ in range(count)])
    if kind == 4:
        word = rng.choice(("CONTAINS", "StartsWith", "endswith"))
        return ("text", word, rng.random() < 0.5, random_value(rng, depth), rng.choice(STRINGS))
    if kind == 5:
        return ("between", rng.random() < 0.5, random_operand(rng), random_operand(rng), random_operand(rng))
    if kind == 6:
        return rng.choice((("property", rng.choice(NAMES)), ("boolean", rng.random() < 0.5), ("nothing",)))
    if kind == 7:
        return ("not", random_condition(rng, depth - 1))
    parts = [random_condition(rng, depth - 1) for _ in range(rng.choice((2, 2, 3, 5)))]
    return ("and" if kind == 8 else "or", parts)


def text_of(node: tuple[Any, ...]) -> str:
    """The expression, with more parentheses than it needs."""
    match node:
        case ("property", name):
            return name
        case ("number", text):
            return text
        case ("string", text):
            return quoted(text)
        case ("boolean", value):
            return "TRUE" if value else "false"
        case ("nothing",):
            return "NULL"
        case ("negative", inner):
            return f"- {text_of(inner)}" if inner[0] in ("property", "number") else f"-({text_of(inner)})"
        case ("equal", sign, left, right):
            return f"{atom(left)} {sign} {atom(right)}"
        case ("order", sign, left, right):
            return f"{atom(left)}{sign}{atom(right)}"
        case ("null", negated, inner):
            return f"{atom(inner)} is {'not ' if negated else ''}null"
        case ("in", negated, name, values):
            return f"{name} {'NOT ' if negated else ''}in ({', '.join(map(quoted, values))})"
        case ("text", word, negated, inner, search):
            return f"{atom(inner)} {'not ' if negated else ''}{word} {quoted(search)}"
        case ("between", negated, value, low, high):
            return f"{atom(value)} {'NOT ' if negated else ''}BETWEEN {atom(low)} and {atom(high)}"
        case ("not", inner):
            return f"NOT {atom(inner)}"
        case (word, parts):
            return f" {word} ".join(map(atom, parts))
    raise AssertionError(node)


def atom(node: tuple[Any, ...]) -> str:
    text = text_of(node)
    return text if node[0] in ("property", "number", "string", "boolean", "nothing") else f"({text})"


class Java:
    """A value with the type that Java gives it."""

    def __init__(self, kind: str, value: Any) -> None:
        self.kind = kind
        self.value = value


def evaluate(node: tuple[Any, ...], properties: dict[str, str]) -> Java | None:
    """None is null. Raises Failure."""
    match node:
        case ("property", name):
            return Java("String", properties[name]) if properties.get(name) else None
        case ("number", text):
            return number(text)
        case ("string", text):
            return Java("String", text)
        case ("boolean", value):
            return Java("Boolean", value)
        case ("nothing",):
            return None
        case ("negative", inner):
            read = evaluate(inner, properties)
            if read is None or read.kind in ("String", "Boolean"):
                return None
            return Java(read.kind, -read.value)
        case ("equal", sign, left, right):
            result = equal(evaluate(left, properties), evaluate(right, properties))
            if sign == "<>" and result is not None:
                result = not result
            return boolean(result)
        case ("order", sign, left, right):
            return boolean(ordered(sign, evaluate(left, properties), lambda: evaluate(right, properties)))
        case ("null", negated, inner):
            return Java("Boolean", (evaluate(inner, properties) is None) is not negated)
        case ("in", negated, name, values):
            read = evaluate(("property", name), properties)
            return None if read is None else Java("Boolean", (read.value in values) is not negated)
        case ("text", word, negated, inner, search):
            if not search:
                return Java("Boolean", False)
            read = evaluate(inner, properties)
            if read is None or read.kind != "String":
                return Java("Boolean", False)
            has = {
                "contains": search in read.value,
                "startswith": read.value.startswith(search),
                "endswith": read.value.endswith(search),
            }[word.lower()]
            return Java("Boolean", has is not negated)
        case ("between", negated, value, low, high):
            if negated:
                return evaluate(("or", [("order", "<", value, low), ("order", ">", value, high)]), properties)
            return evaluate(("and", [("order", ">=", value, low), ("order", "<=", value, high)]), properties)
        case ("not", inner):
            read = truth(inner, properties)
            return None if read is None else Java("Boolean", not read)
        case (word, parts):
            stops = word == "or"
            unknown = False
            for part in parts:
                read = truth(part, properties)
                if read is stops:
                    return Java("Boolean", stops)
                unknown |= read is None
            return None if unknown else Java("Boolean", not stops)
    raise AssertionError(node)


def truth(node: tuple[Any, ...], properties: dict[str, str]) -> bool | None:
    """Where a condition is needed: a property is not a boolean."""
    read = evaluate(node, properties)
    if read is None:
        return None
    return read.value if read.kind == "Boolean" else False


def matches(node: tuple[Any, ...], properties: dict[str, str]) -> bool:
    try:
        return truth(node, properties) is True
    except Failure:
        return False


def boolean(value: bool | None) -> Java | None:
    return None if value is None else Java("Boolean", value)


def number(text: str) -> Java:
    if re.fullmatch(r"[0-9]+[lL]?", text):
        value = int(text.rstrip("lL"))
        return Java("Integer" if value < 2**31 else "Long", value)
    return Java("Double", float(text))


def equal(left: Java | None, right: Java | None) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0


def ordered(sign: str, left: Java | None, right: Any) -> bool | None:
    if left is None:
        return None
    other = right()
    if other is None:
        return None
    if left.kind == other.kind == "String":
        left, other = convert(left, "Double"), convert(other, "Double")
    result = compare(left, other)
    return {"<": result < 0, "<=": result <= 0, ">": result > 0, ">=": result >= 0}[sign]


def compare(left: Java, right: Java) -> int:
    if left.kind != right.kind:
        if left.kind == "Boolean":
            if right.kind == "String":
                raise Failure
            return -1
        if right.kind == "Boolean" and left.kind != "String":
            return -1
        if left.kind == "String":
            left = convert(left, right.kind)
        elif right.kind == "String":
            right = convert(right, left.kind)
        else:
            wider = "Double" if "Double" in (left.kind, right.kind) else "Long"
            left, right = convert(left, wider), convert(right, wider)
    if left.kind == "Double":
        one, two = key(left.value), key(right.value)
        return (one > two) - (one < two)
    return (left.value > right.value) - (left.value < right.value)


def key(value: float) -> tuple[int, float, int]:
    """Sorts as Double.compareTo."""
    if value != value:
        return (1, 0.0, 0)
    return (0, value, 0 if str(value) == "-0.0" else 1)


def convert(value: Java, kind: str) -> Java:
    if value.kind != "String":
        return Java(kind, float(value.value) if kind == "Double" else value.value)
    text = value.value
    if kind == "Boolean":
        return Java(kind, text.lower() == "true")
    if kind == "Double":
        text = text.strip("".join(map(chr, range(33))))
        if re.fullmatch(r"[+-]?0[xX][0-9a-fA-F.]+[pP][+-]?[0-9]+[fFdD]?", text):
            return Java(kind, float.fromhex(re.sub("[fFdD]$", "", text)))
        if not text.isascii() or not re.fullmatch(
            r"[+-]?(NaN|Infinity|[0-9.]+([eE][+-]?[0-9]+)?[fFdD]?)", text
        ):
            raise Failure
        try:
            return Java(kind, float(re.sub("(?<=[0-9.])[fFdD]$", "", text)))
        except ValueError:
            raise Failure from None
    if not re.fullmatch(r"[+-]?\d+", text):
        raise Failure
    most = 2**31 if kind == "Integer" else 2**63
    if not -most <= int(text) < most:
        raise Failure
    return Java(kind, int(text))
