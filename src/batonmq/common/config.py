"""Configuration keys: how they are declared, and what is known of them.

A key is one field of a frozen dataclass: its type, its default, its metadata and the docstring below it are
all there is to say; `-p`, the documentation and `updateBrokerConfig` are derived from it with `describe`. The
key on the wire and in the file is the camelCase of the field's name, or ``metadata={"key": "brokerIP1"}``.
``{"changeable": True}`` says that a request may change the key while the program runs; all others are read
once, at start. `config_loader` fills the classes from RocketMQ's Java-properties files.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from batonmq.common.addresses import is_address, split_addresses
from batonmq.common.properties import property_lines


class ConfigError(Exception):
    """A configuration that cannot be used; the message names file, key and value."""


INT_MAX = (1 << 31) - 1
"""Largest value of a Java int, which nearly all numbers of RocketMQ's files are."""
LONG_MAX = (1 << 63) - 1
"""Largest value of a Java long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Between which numbers a value must be; both belong to it."""

    least: int
    most: int

    def check(self, value: int) -> None:
        """Raises `ValueError` saying what was expected."""
        if value < self.least:
            raise ValueError(f"must be at least {self.least}")
        if value > self.most:
            raise ValueError(f"must be at most {self.most}")

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most >= INT_MAX else f"{self.least} to {self.most}"


def number(
    default: int | None,
    least: int,
    most: int = INT_MAX,
    *,
    key: str | None = None,
    changeable: bool = False,
) -> Any:
    """A field that is a whole number within limits; ``key`` is its spelling if that is not camelCase.

    A period of 0 or less would keep the event loop busy, so a key that becomes a timer has limits always.
    """
    spelling = {} if key is None else {"key": key}
    metadata = {"limits": Limits(least, most), "changeable": changeable, **spelling}
    return dataclasses.field(default=default, metadata=metadata)


def changeable(default: Any) -> Any:
    """A field that a request may change while the program runs."""
    return dataclasses.field(default=default, metadata={"changeable": True})


def check_addresses(key: str, text: str) -> None:
    """For ``__post_init__``: raise `ConfigError` unless the value is empty or ``host:port;host:port``."""
    for part in split_addresses(text):
        require(is_address(part), f"{key}={text}: {part!r} is not an address, expected host:port")


def check_limits(config: Any) -> None:
    """For ``__post_init__``: raise `ConfigError` unless every `number` is within its limits."""
    for field in dataclasses.fields(config):
        value, limits = getattr(config, field.name), field.metadata.get("limits")
        if limits is not None and value is not None:
            try:
                limits.check(value)
            except ValueError as error:
                raise ConfigError(f"{wire_key(field)}={value}: {error}") from None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """One configuration key, as users see it."""

    key: str
    field: str
    type: Any
    type_name: str
    default: Any
    doc: str
    owner: type[Any]
    limits: Limits | None
    changeable: bool
    """A request may change it while the program runs."""


def require(condition: bool, message: str) -> None:
    """For ``__post_init__``: raise `ConfigError` unless a relation between keys holds."""
    if not condition:
        raise ConfigError(message)


def wire_key(field: dataclasses.Field[Any]) -> str:
    """The spelling of a field's key in files and on the wire."""
    explicit = field.metadata.get("key")
    if explicit is not None:
        return str(explicit)
    head, *rest = field.name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


@functools.cache
def _docs(cls: type[Any]) -> Mapping[str, str]:
    """The docstring below each field, of the class and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(typing.cast("type[Any]", base))))
        except (OSError, TypeError, SyntaxError):
            continue  # a class without source (made at run time) has no field docstrings to show
        body = typing.cast("ast.ClassDef", tree.body[0]).body
        for statement, following in itertools.pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                docs[statement.target.id] = " ".join(following.value.value.split())
    return docs


@functools.cache
def _hints(cls: type[Any]) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def _type_name(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return "|".join(_type_name(part) for part in typing.get_args(kind) if part is not type(None))
    return getattr(kind, "__name__", str(kind))


def describe(*classes: type[Any]) -> list[KeyInfo]:
    """Every key of the classes, as declared; a key of several classes appears once for each."""
    infos: list[KeyInfo] = []
    for cls in classes:
        declared: Any = cls  # a class is hashable, which mypy does not see
        hints, docs = _hints(declared), _docs(declared)
        for field in dataclasses.fields(cls):
            if not field.init:
                continue
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            elif field.default is not dataclasses.MISSING:
                default = field.default
            else:
                default = None
            kind = hints[field.name]
            infos.append(
                KeyInfo(
                    wire_key(field),
                    field.name,
                    kind,
                    _type_name(kind),
                    default,
                    docs.get(field.name, ""),
                    cls,
                    field.metadata.get("limits"),
                    field.metadata.get("changeable", False),
                )
            )
    return infos


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a properties file; a later key wins. Raises `ConfigError` naming the line."""
    try:
        return {line.key: line.value for line in property_lines(text)}
    except ValueError as error:
        raise ConfigError(str(error)) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a line about an unknown word: the nearest known one, or nothing."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def keys_of(classes: Sequence[type[Any]]) -> set[str]:
    """All keys the classes know."""
    return {info.key for info in describe(*classes)}


def changeable_keys(*classes: type[Any]) -> set[str]:
    """The keys that a request may change while the program runs."""
    return {info.key for info in describe(*classes) if info.changeable}
