"""Configuration: RocketMQ's Java-properties files into frozen dataclasses.

A key is one dataclass field: its type, its default and the docstring below it are all there is to say; `-p`,
the documentation and `updateBrokerConfig` are derived from it with `describe`. The key on the wire and in the
file is the camelCase of the field's name, or ``metadata={"key": "brokerIP1"}``.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import logging
import math
import re
import textwrap
import types
import typing
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, overload

from batonmq.common.addresses import is_address, split_addresses
from batonmq.common.properties import PropertyLine, property_lines

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")


class ConfigError(Exception):
    """A configuration that cannot be used; the message names file, key and value."""


INT_MAX = (1 << 31) - 1
"""Largest value of a Java int, which nearly all numbers of RocketMQ's files are."""


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


def number(default: int | None, least: int, most: int = INT_MAX, *, key: str | None = None) -> Any:
    """A field that is a whole number within limits; ``key`` is its spelling if that is not camelCase.

    A period of 0 or less would keep the event loop busy, so a key that becomes a timer has limits always.
    """
    spelling = {} if key is None else {"key": key}
    return dataclasses.field(default=default, metadata={"limits": Limits(least, most), **spelling})


def check_addresses(key: str, text: str) -> None:
    """For ``__post_init__``: raise `ConfigError` unless the value is empty or ``host:port;host:port``."""
    for part in split_addresses(text):
        require(is_address(part), f"{key}={text}: {part!r} is no address, expected host:port")


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
                )
            )
    return infos


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a properties file; a later key wins. Raises `ConfigError` naming the line."""
    try:
        return {line.key: line.value for line in property_lines(text)}
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_is_properties(lines: Sequence[PropertyLine], known: Container[str]) -> None:
    """Raises `ValueError` for a text that is something else: taken for properties, all of it would be unknown
    keys, and the program would start with nothing but defaults."""
    strange = next((line for line in lines if not line.plain), None)
    if strange is not None and not any(line.key in known for line in lines):
        shown = f"{strange.key} {strange.value}"[:40].strip()
        raise ValueError(
            f"is no configuration file: line {strange.number} ({shown!r}) is not key=value, "
            "and no line sets a key that is known here"
        )


_WHOLE = re.compile(r"[+-]?[0-9]+")


def convert(text: str, kind: Any) -> Any:
    """A value from its text. Raises `ValueError` saying what was expected."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        parts = typing.get_args(kind)
        if type(None) in parts and text in ("", "null"):
            return None
        errors: list[str] = []
        for part in parts:
            if part is type(None):
                continue
            try:
                return convert(text, part)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError(" or ".join(errors))
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        raise ValueError("expected true or false")  # RocketMQ takes any other word for false and says nothing
    if kind is int:
        if _WHOLE.fullmatch(text.strip()) is None or len(text) > 20:
            raise ValueError("expected a whole number")
        return int(text)
    if kind is float:
        try:
            value = float(text.strip())
        except ValueError:
            raise ValueError("expected a number") from None
        if not math.isfinite(value):
            raise ValueError("expected a number")
        return value
    if kind is str:
        return text.strip()
    if kind is Path:
        return Path(text.strip()).expanduser()
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if text.strip().lower() in (str(member.value).lower(), member.name.lower()):
                return member
        raise ValueError(f"expected one of {', '.join(str(member.value) for member in kind)}")
    if typing.get_origin(kind) in (tuple, list):
        item = typing.get_args(kind)[0]
        values = [convert(part, item) for part in text.replace(";", ",").split(",") if part.strip()]
        return typing.get_origin(kind)(values)
    raise TypeError(f"configuration fields of type {kind!r} are not supported")


def _value(text: str, info: KeyInfo) -> Any:
    value = convert(text, info.type)
    if info.limits is not None and value is not None:
        info.limits.check(value)
    return value


def to_text(value: Any) -> str:
    """The text of a value as it stands in a properties file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return ";".join(to_text(item) for item in value)
    return str(value)


@overload
def load(path: Path | None, c1: type[T], /, *, overrides: Mapping[str, str] = ...) -> tuple[T]: ...
@overload
def load(
    path: Path | None, c1: type[T], c2: type[U], /, *, overrides: Mapping[str, str] = ...
) -> tuple[T, U]: ...
@overload
def load(
    path: Path | None, c1: type[T], c2: type[U], c3: type[V], /, *, overrides: Mapping[str, str] = ...
) -> tuple[T, U, V]: ...
@overload
def load(
    path: Path | None,
    c1: type[T],
    c2: type[U],
    c3: type[V],
    c4: type[W],
    /,
    *,
    overrides: Mapping[str, str] = ...,
) -> tuple[T, U, V, W]: ...
@overload
def load(
    path: Path | None, /, *classes: type[Any], overrides: Mapping[str, str] = ...
) -> tuple[Any, ...]: ...
def load(path: Path | None, /, *classes: type[Any], overrides: Mapping[str, str] = {}) -> tuple[Any, ...]:
    """Fill configuration classes from a properties file; ``overrides`` (the command line) win over the file.

    A key that several classes declare goes to each of them. An unknown key is logged as a warning that names
    the nearest known one: RocketMQ files carry keys that do not concern us.

    Raises:
        ConfigError: the file cannot be read or is no properties file, a value does not fit its key, or a
            relation of keys is broken.
    """
    values: dict[str, tuple[str, str]] = {}
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        try:
            lines = list(property_lines(text))
            _check_is_properties(lines, keys_of(classes))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
        values.update({line.key: (line.value, str(path)) for line in lines})
    values.update({key: (value, "command line") for key, value in overrides.items()})
    return build(values, *classes)


def canonical(values: Mapping[str, U], *classes: type[Any]) -> dict[str, U]:
    """The same values under the spelling of their keys that `describe` has (``ALIASES`` of the classes)."""
    aliases = {alias: key for cls in classes for alias, key in getattr(cls, "ALIASES", {}).items()}
    return {aliases.get(key, key): value for key, value in values.items()}


def known_to(values: Mapping[str, U], *classes: type[Any]) -> dict[str, U]:
    """Those values whose keys the classes have."""
    known = keys_of(classes)
    return {key: value for key, value in values.items() if key in known}


def build(values: Mapping[str, tuple[str, str]], *classes: type[Any]) -> tuple[Any, ...]:
    """`load` from values already at hand: key -> (text, where it came from)."""
    values = canonical(values, *classes)
    arguments: dict[type[Any], dict[str, Any]] = {cls: {} for cls in classes}
    known: set[str] = set()
    for info in describe(*classes):
        known.add(info.key)
        if info.key not in values:
            continue
        text, source = values[info.key]
        try:
            arguments[info.owner][info.field] = _value(text, info)
        except ValueError as error:
            raise ConfigError(f"{source}: {info.key}={text}: {error}") from None
    reasons = {key: why for cls in classes for key, why in getattr(cls, "HAS_NO_EFFECT", {}).items()}
    for key, (_, source) in values.items():
        if key in reasons:
            log.warning("%s: %s has no effect here: %s", source, key, reasons[key])
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            log.warning("%s: unknown key %s is ignored%s", source, key, hint)
    built: list[Any] = []
    sources = sorted({source for _, source in values.values() if source != "command line"})
    for cls in classes:
        try:
            built.append(cls(**arguments[cls]))
        except ConfigError as error:
            raise ConfigError(f"{', '.join(sources) or 'configuration'}: {error}") from None
        except TypeError as error:
            raise ConfigError(f"{', '.join(sources) or 'configuration'}: {cls.__name__}: {error}") from None
    return tuple(built)


def update(config: T, changes: Mapping[str, str], *, source: str = "updateConfig") -> T:
    """A copy of ``config`` with some keys changed, as `updateBrokerConfig` asks; foreign keys are left alone.

    Raises:
        ConfigError: a value does not fit its key.
    """
    arguments: dict[str, Any] = {}
    for info in describe(type(config)):
        if info.key in changes:
            try:
                arguments[info.field] = _value(changes[info.key], info)
            except ValueError as error:
                raise ConfigError(f"{source}: {info.key}={changes[info.key]}: {error}") from None
    return dataclasses.replace(config, **arguments) if arguments else config  # type: ignore[type-var]


def to_properties(*configs: Any) -> str:
    """``key=value`` lines of all keys, as getBrokerConfig returns them; a key of several configs once.

    Fields with ``metadata={"secret": True}`` are shown without their value.
    """
    lines: dict[str, str] = {}
    for config in configs:
        secrets = {field.name for field in dataclasses.fields(config) if field.metadata.get("secret")}
        for info in describe(type(config)):
            hidden = info.field in secrets
            lines.setdefault(info.key, "" if hidden else to_text(getattr(config, info.field)))
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def changed_keys(config: Any) -> set[str]:
    """Keys whose value is not the default."""
    return {info.key for info in describe(type(config)) if getattr(config, info.field) != info.default}


def keys_of(classes: Sequence[type[Any]]) -> set[str]:
    """All keys the classes know."""
    return {info.key for info in describe(*classes)}
