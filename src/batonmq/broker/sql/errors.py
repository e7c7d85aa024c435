"""Errors of an expression, and of a value that it meets."""

from __future__ import annotations


class SqlError(ValueError):
    """The expression is not valid; the text says what and where."""


class EvaluationError(ValueError):
    """A property has a value that cannot be compared: the whole expression does not match the message."""
