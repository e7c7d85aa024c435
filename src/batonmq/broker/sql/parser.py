"""Reads an expression into its tree.

Source: the grammar in `SelectorParser.jj` of RocketMQ's filter. One rule differs: RocketMQ ignores whatever
follows the longest valid beginning (``a = 1 b = 2`` is ``a = 1`` there, ``a LIKE 'x'`` is ``a``); here that
is an error.
"""

from __future__ import annotations

from typing import Final

from batonmq.broker.sql import tree
from batonmq.broker.sql.errors import SqlError
from batonmq.broker.sql.lexer import BROKEN, END, Token, tokens_of
from batonmq.broker.sql.tree import Node

_ORDERS: Final = ("<", "<=", ">", ">=")
_TEXT_TESTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def parse(expression: str) -> tuple[Node, list[str]]:
    """The condition, and the property of each lookup in it. Raises `SqlError`."""
    parser = _Parser(expression)
    return parser.parse(), parser.lookups


class _Parser:
    """Recursive descent, one method for each rule of the grammar."""

    def __init__(self, expression: str) -> None:
        self.lookups: list[str] = []
        self._expression = expression
        self._tokens = tokens_of(expression)
        self._at = 0
        self._depth = 0
        self._terms = 0

    def parse(self) -> Node:
        result = tree.condition(self._or())
        token = self._peek()
        if token.kind == END or self._expression.startswith("--", token.at):
            return result  # a comment without a line end is two minus signs to the lexer, as in RocketMQ
        raise self._unexpected("the end, AND or OR")

    # -- tokens

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _take(self, *kinds: str) -> Token | None:
        """The next token, if it is one of these."""
        token = self._tokens[self._at]
        if token.kind not in kinds:
            return None
        self._at += 1
        return token

    def _need(self, kind: str, what: str) -> Token:
        token = self._take(kind)
        if token is None:
            raise self._unexpected(what)
        return token

    def _unexpected(self, needed: str) -> SqlError:
        token = self._peek()
        if token.kind == END:
            return SqlError(f"the expression ends where {needed} is expected")
        if token.kind == BROKEN:
            return SqlError(f"unexpected character {token.text!r} at position {token.at + 1}")
        return SqlError(f"unexpected {token.text[:40]!r} at position {token.at + 1}, expected {needed}")

    def _string(self) -> str:
        return self._need("string", "a string in single quotes").text[1:-1].replace("''", "'")

    def _count_term(self) -> None:
        self._terms += 1
        if self._terms > tree.MAX_TERMS:
            raise SqlError(f"the expression has more than {tree.MAX_TERMS} comparisons")

    # -- rules

    def _or(self) -> Node:
        left = self._and()
        parts: list[Node] = []
        while self._take("OR"):
            if not parts:
                parts.append(tree.condition(left))
            parts.append(tree.condition(self._and()))
        return tree.Or(parts) if parts else left

    def _and(self) -> Node:
        left = self._equality()
        parts: list[Node] = []
        while self._take("AND"):
            if not parts:
                parts.append(tree.condition(left))
            parts.append(tree.condition(self._equality()))
        return tree.And(parts) if parts else left

    def _equality(self) -> Node:
        left = self._comparison()
        while token := self._take("=", "<>", "IS"):
            self._count_term()
            if token.kind == "IS":
                negated = self._take("NOT") is not None
                self._need("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = tree.Equal(left, tree.NULL)
            else:
                negated = token.kind == "<>"
                left = tree.equal(left, self._comparison())
            if negated:
                left = tree.Not(left)
        return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            if token := self._take(*_ORDERS):
                self._count_term()
                left = tree.order(token.kind, left, self._unary())
                continue
            negated = self._take("NOT") is not None
            token = self._take(*_TEXT_TESTS, "BETWEEN", "IN")
            if token is None:
                if negated:
                    raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
                return left
            self._count_term()
            if token.kind == "BETWEEN":
                self._count_term()
                low = self._unary()
                self._need("AND", "AND")
                high = self._unary()
                left = (tree.not_between if negated else tree.between)(left, low, high)
            elif token.kind == "IN":
                self._need("(", "'('")
                values = [self._string()]
                while self._take(","):
                    values.append(self._string())
                self._need(")", "',' or ')'")
                left = tree.one_of(left, values, negated)
            else:
                left = tree.TextTest(token.kind, left, self._string(), negated)

    def _unary(self) -> Node:
        self._depth += 1
        if self._depth > tree.MAX_DEPTH:
            raise SqlError(f"the expression is nested more than {tree.MAX_DEPTH} levels deep")
        try:
            if self._take("+"):
                return self._unary()
            if self._take("-"):
                return tree.Negative(self._unary())
            if self._take("NOT"):
                return tree.Not(tree.condition(self._unary()))
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        token = self._peek()
        match token.kind:
            case "string":
                return tree.Constant(self._string(), tree.Kind.STRING)
            case "(":
                self._at += 1
                inner = self._or()
                self._need(")", "')'")
                return inner
            case "integer":
                node: Node = tree.integer(token.text)
            case "float":
                node = tree.double(token.text)
            case "TRUE":
                node = tree.TRUE
            case "FALSE":
                node = tree.FALSE
            case "NULL":
                node = tree.NULL
            case "name":
                self.lookups.append(token.text)
                node = tree.Property(token.text)
            case _:
                raise self._unexpected("a property, a value or '('")
        self._at += 1
        return node
