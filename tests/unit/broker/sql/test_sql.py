"""SQL92 expressions: grammar, type rules, three-valued logic, bounds; at random against `cases.evaluate`."""

from __future__ import annotations

import random
import time

import pytest
from tests.unit.broker.sql import cases

from batonmq.broker.sql import SqlError, compile_expression, weight_of
from batonmq.broker.sql.errors import EvaluationError
from batonmq.broker.sql.numbers import compare_doubles, parse_double, parse_integer
from batonmq.broker.sql.one_property import KEPT, KEPT_SIZE, OneProperty
from batonmq.protocol.message.properties import encode_properties

PROPERTIES = encode_properties(
    {"TAGS": "red", "a": "5", "text": "hello", "yes": "TRUE", "d": "2.5", "quote": "it's", "é": "x"}
)

MATCHING = """
a = 5 | a = '5' | 5 = a | a = 5L | a <> 6 | a > 4 | a >= 5.0 | a < 5.5 | a <= 5 | a > -5 | a > - - 4 | +a = 5
a > 4 and a <= 5 | a >= 5 and a < 6 | none between 1 and 2 or a = 5
a between 1 and 5 | a not between 6 and 9 | a BETWEEN 4.5 And 5 | d between a and 9 and a = 5 or a = 5
text in ('x', 'hello') | text not in ('x') | text contains 'ell' | text startswith 'he' | text ENDSWITH 'lo'
text not contains 'x' | text not startswith 'x' | text not endswith 'x' | quote = 'it''s' | TAGS = 'red'
a is not null | none is null | none is null and a = 5 | not none is null | yes = true | 'true' = TRUE
not (a = 6) | not a | not text | a = 5 or none = 5 | none = 5 or a = 5 | (((a = 5))) | TRUE | not false
none = other | 5 <> none | -a is null | -'x' is null | a = 5 = true | (a = 5) = (d = 2.5) | a = 5 <> 5
a = 5 -- it's a comment | a /* * ** / */ = 5 | a\\t=\\n5 | text = 'hello' And Not (a = 6 Or a = 7) | d = .25e1
"""

NOT_MATCHING = """
a = 6 | a > 5 | a | yes | NULL | false | none = 5 | none <> 5 | not (none = 5) | none in ('x')
none not in ('x')
a = 5 and none = 1 | none > 1 or a = 6 | text > 1 | text > 1 or a = 5 | text > a | text between 1 and 2
a between 6 and 9 | a > 5 and a < 9 | not (none between 1 and 2) | not (a between 1 and 9) | d between 1 and 9
text contains '' | text not contains '' | none contains 'x' | none not contains 'x' | 5 contains '5'
TRUE = yes | TRUE = yes or a = 5 | 5 = none | a = 3000000000000000000 | A = 5 | text = 'Hello' | a = true
"""

INVALID = {
    "": "the expression ends where",
    "a >": "the expression ends where a property",
    "a = 1 b = 2": "unexpected 'b' at position 7",
    "a like 'x'": "unexpected 'like'",
    "a != 1": "unexpected character '!' at position 3",
    "a = 'x": "unexpected character",
    "a = 1;": "unexpected character ';'",
    "a > 'x'": "'x' cannot be compared by >",
    "a > TRUE": "TRUE cannot be compared by >",
    "a > NULL": "NULL cannot be compared by >",
    "(a > 1) > 2": "a condition cannot be compared by >",
    "a = NULL": "use IS NULL",
    "NULL <> a": "use IS NULL",
    "TRUE = 'x'": "TRUE cannot be compared with 'x'",
    "FALSE = 5": "FALSE cannot be compared with 5",
    "a between 6 and 5": "must not be above",
    "a between 'a' and 'b'": "'a' cannot be compared",
    "a in (5)": "expected a string in single quotes",
    "a in ()": "expected a string",
    "a in ('x'": "ends where ',' or ')'",
    "'a' in ('x')": "IN needs a property",
    "(a) in ('x'": "ends where",
    "a not 5": "expected BETWEEN, IN",
    "a is 5": "expected NULL or NOT NULL",
    "a contains 5": "expected a string",
    "5": "5 is not a condition",
    "'x'": "'x' is not a condition",
    "-a": "-a is not a condition",
    "a and 5": "5 is not a condition",
    "not 5": "5 is not a condition",
    "a = 9223372036854775808": "above the largest 64-bit number",
    "a = -9223372036854775808": "above the largest 64-bit number",
    "a > 0.0": "write 0 for zero",
    "a > 1e400": "above the largest double",
    "a > 007": "unexpected character '0'",
    "a = 1 /* x": "unexpected character '/'",
    "a = '\ud800'": "not Unicode text",
    "((a = 1)": "ends where ')'",
}


def listed(table: str) -> list[str]:
    return [case.strip(" ") for line in table.strip().split("\n") for case in line.split(" | ")]


@pytest.mark.parametrize("expression", listed(MATCHING))
def test_matches(expression: str) -> None:
    assert compile_expression(expression.replace("\\t", "\t").replace("\\n", "\n"))(PROPERTIES) is True


@pytest.mark.parametrize("expression", listed(NOT_MATCHING))
def test_does_not_match(expression: str) -> None:
    assert compile_expression(expression)(PROPERTIES) is False


@pytest.mark.parametrize("expression", INVALID)
def test_an_invalid_expression_is_one_clear_error(expression: str) -> None:
    with pytest.raises(SqlError) as error:
        compile_expression(expression)
    assert INVALID[expression] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_agree_with_the_slow_evaluator(seed: int) -> None:
    rng = random.Random(seed)
    compiled = matched = 0
    for _ in range(100):
        node = cases.random_condition(rng, rng.choice((1, 2, 4)))
        text = cases.text_of(node)
        try:
            test = compile_expression(text)
        except SqlError:
            continue
        compiled += 1
        for _ in range(8):
            properties = cases.random_properties(rng)
            result = test(encode_properties(properties))
            assert result is cases.matches(node, properties), (text, properties)
            matched += result
    assert compiled > 30 and matched > 50


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 30_000 + "a" + ")" * 30_000,
        "not " * 16_000 + "a",
        "a > " + "- " * 30_000 + "1",
        "a > " + "+" * 60_000 + "1",
        "a" + " is null" * 8_000,
        "a" + " = b" * 16_000,
        "a" + " contains 'x'" * 5_000,
        "a = '" + "x" * 70_000,
        "a = '" + "''" * 32_000,
        "/*" * 32_000,
        "/*" + "*" * 65_000,
        "--" * 32_000,
        "a = 1" + " or a = 1" * 8_000,
        "a = 1" + " or a between 1 and 2" * 250,
        "a = 1" + " or a in ('x')" * 500,
        "a = " + "9" * 60_000,
        "a > 0." + "0" * 60_000 + "1",
        "a > 1e" + "9" * 60_000,
        "a in (" + "'x'," * 15_000,
        "\x00" * 1000,
        "a > " + "0" * 60_000,
        "a > 1" + ".5" * 30_000,
        "a = " + "1l" * 30_000,
        "a = " + "'x' " * 15_000,
        "--\n" * 20_000,
    ],
    ids=range(25),
)
def test_a_hostile_expression_is_refused_quickly(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(SqlError) as error:
        compile_expression(expression)
    assert time.process_time() - began < 1.0
    assert len(str(error.value)) < 200


def test_long_chains_are_not_deep() -> None:
    assert compile_expression(" or ".join(f"a = {n}" for n in range(500, 0, -1)))(PROPERTIES)
    assert not compile_expression(" and ".join(["a = 5"] * 499 + ["a = 6"]))(PROPERTIES)
    assert compile_expression("a in (" + ",".join(f"'{n}'" for n in range(9000)) + ")")(PROPERTIES)


@pytest.mark.parametrize(
    "properties",
    [b"", b"\x01\x02" * 100, b"a", b"a\x01", b"a\x01\x02", b"\xff\xfe\x01\x80\x02", b"a\x01\xff\xfe\x02"],
)
def test_broken_properties_do_not_match_and_do_not_fail(properties: bytes) -> None:
    for expression in ("a = 5", "a > 5", "a contains 'x'", "a > 0.5", "a = b and a = 'x'", "a in ('x')"):
        assert compile_expression(expression)(properties) is False


def test_bytes_that_are_not_utf8_equal_the_replacement_character() -> None:
    assert compile_expression("a = '\ufffd'")(b"a\x01\xff\x02")


def test_the_last_of_two_values_counts() -> None:
    assert compile_expression("a = 'y'")(b"a\x01x\x02a\x01y\x02")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
        ("0" * 100 + "5", 5),
        ("٣", 3),
    ],
)
def test_integers_as_java_reads_them(text: str, value: int) -> None:
    assert parse_integer(text.encode(), 2**31 - 1) == value


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "1_000", "0x10", "5L", "2147483648", "+", "--5", "5.0", "9" * 9000, "𝟓", "²"]
)
def test_what_is_not_an_integer(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_integer(text.encode(), 2**31 - 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        (" 5.5 ", 5.5),
        ("1.5f", 1.5),
        ("1e3D", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("0x1.8p1", 3.0),
        ("Infinity", float("inf")),
        ("-Infinity", float("-inf")),
        ("1e999", float("inf")),
        ("0x1p9999999999", float("inf")),
        ("-0x1p99999", float("-inf")),
        ("0x1p-99999999999", 0.0),
        ("0x0p99999999", 0.0),
        ("1e-999", 0.0),
    ],
)
def test_doubles_as_java_reads_them(text: str, value: float) -> None:
    assert parse_double(text.encode()) == value


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "Infinityf", "0x10", "1_0", "1e", "e5", ".", "5 5", "٣", "1ff"]
)
def test_what_is_not_a_double(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_double(text.encode())


def test_doubles_compare_as_in_java() -> None:
    nan, inf = float("nan"), float("inf")
    ascending = [-inf, -1.0, -0.0, 0.0, 1.0, inf, nan]
    for at, low in enumerate(ascending):
        assert compare_doubles(low, low) == 0
        for high in ascending[at + 1 :]:
            assert compare_doubles(low, high) < 0 < compare_doubles(high, low)


@pytest.mark.parametrize("name", ["a", "zz"])
@pytest.mark.parametrize(
    "properties",
    [b"k\x01" + b"a\x01" * 16_000, b"a\x01x\x02" * 8_000, b"a\x01" + b"1" * 32_000, b"ka\x01" * 10_000],
    ids=range(4),
)
def test_properties_that_are_slow_to_search_are_bounded(name: str, properties: bytes) -> None:
    test = compile_expression(" or ".join(f"{name} = {n} or {name} contains 'q'" for n in range(250)))
    began = time.process_time()
    assert test(properties) is False
    assert time.process_time() - began < 0.5


def test_many_lookups_and_long_properties_give_the_same_result() -> None:
    few, many = "a = 5 and b = 'x'", "a = 5 and b = 'x' and c is null and a > 1 and a < 9"
    for padding in ("", "y" * 5_000):
        properties = encode_properties({"p": padding, "a": "5", "b": "x"})
        assert compile_expression(few)(properties) and compile_expression(many)(properties)


def test_an_expression_over_many_properties_weighs_more() -> None:
    assert [weight_of(" OR ".join(["a = 5"] * number)) for number in (1, 3, 4, 400)] == [1, 1, 2, 101]


def test_an_expression_about_one_property_is_evaluated_once_for_each_value() -> None:
    evaluated: list[bytes | None] = []

    def decides(value: bytes | None) -> bool:
        evaluated.append(value)
        return value == b"7"

    a = OneProperty("a", decides)
    found = [a(properties) for properties in (b"a\x017\x02", b"a\x018", b"b\x017", b"", b"a\x017") * 2]
    assert found == [True, False, False, False, True] * 2
    assert evaluated == [b"7", b"8", None]


def test_answers_for_many_or_long_values_do_not_fill_the_memory() -> None:
    a = OneProperty("a", lambda value: value is not None and value.endswith(b"7"))
    for number in range(3 * KEPT):
        assert a(b"a\x01%d\x02" % number) is (number % 10 == 7)
    assert len(a._answers) <= KEPT
    kept = dict(a._answers)
    assert a(b"a\x01%s7\x02" % (b"1" * KEPT_SIZE)) is True
    assert a._answers == kept
