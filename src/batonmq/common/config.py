"""Configuration: RocketMQ's Java-properties files into frozen dataclasses.

A key is one dataclass field: its type, its default and the docstring below it are all there is to say; `-p`,
the documentation and `updateBrokerConfig` are derived from it with `describe`. The key on the wire and in the
file is the camelCase of the field's name, or ``metadata={"key": "brokerIP1"}``.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import logging
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, overload

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")


class ConfigError(Exception):
    """A configuration that cannot be used; the message names file, key and value."""


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


def _docs(cls: type[Any]) -> dict[str, str]:
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
        hints = typing.get_type_hints(cls)
        docs = _docs(cls)
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
                )
            )
    return infos


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file: ``key=value``, ``key: value`` or ``key value`` lines, ``#`` and ``!`` comments.

    Backslash escapes and continued lines are understood as `java.util.Properties` does; a later key wins.
    Raises `ConfigError` naming the line.
    """
    result: dict[str, str] = {}
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        logical = line.lstrip(" \t\f")
        if not logical or logical[0] in "#!":
            continue
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        position, escaped = 0, False
        while position < len(logical):
            char = logical[position]
            if not escaped and char in "=: \t\f":
                break
            escaped = char == "\\" and not escaped
            position += 1
        key, rest = logical[:position], logical[position:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        try:
            result[_unescape(key)] = _unescape(rest)
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
    return result


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    chars = iter(text)
    for char in chars:
        if char != "\\":
            out.append(char)
            continue
        code = next(chars, "")
        if code == "u":
            digits = "".join(next(chars, "") for _ in range(4))
            try:
                out.append(chr(int(digits, 16)))
            except ValueError:
                raise ConfigError(f"malformed \\u escape: \\u{digits}") from None
        else:
            out.append(_ESCAPES.get(code, code))
    return "".join(out)


_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


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
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise ValueError("expected true or false")
    if kind is int:
        try:
            return int(text.strip())
        except ValueError:
            raise ValueError("expected a whole number") from None
    if kind is float:
        try:
            return float(text.strip())
        except ValueError:
            raise ValueError("expected a number") from None
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
        ConfigError: the file cannot be read, a value does not fit its key, or a relation of keys is broken.
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
            values.update({key: (value, str(path)) for key, value in parse_properties(text).items()})
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    values.update({key: (value, "command line") for key, value in overrides.items()})
    return build(values, *classes)


def build(values: Mapping[str, tuple[str, str]], *classes: type[Any]) -> tuple[Any, ...]:
    """`load` from values already at hand: key -> (text, where it came from)."""
    arguments: dict[type[Any], dict[str, Any]] = {cls: {} for cls in classes}
    known: set[str] = set()
    for info in describe(*classes):
        known.add(info.key)
        if info.key not in values:
            continue
        text, source = values[info.key]
        try:
            arguments[info.owner][info.field] = convert(text, info.type)
        except ValueError as error:
            raise ConfigError(f"{source}: {info.key}={text}: {error}") from None
    for key, (_, source) in values.items():
        if key not in known:
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
                arguments[info.field] = convert(changes[info.key], info.type)
            except ValueError as error:
                raise ConfigError(f"{source}: {info.key}={changes[info.key]}: {error}") from None
    return dataclasses.replace(config, **arguments) if arguments else config  # type: ignore[type-var]


def to_properties(*configs: Any) -> str:
    """``key=value`` lines of all keys, as getBrokerConfig returns them; a key of several configs once."""
    lines: dict[str, str] = {}
    for config in configs:
        for info in describe(type(config)):
            lines.setdefault(info.key, to_text(getattr(config, info.field)))
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def keys_of(classes: Sequence[type[Any]]) -> set[str]:
    """All keys the classes know."""
    return {info.key for info in describe(*classes)}


def with_changes(text: str, changes: Mapping[str, str]) -> str:
    """A properties file with some keys changed in place, new ones at its end, everything else as it was."""
    left = dict(changes)
    lines: list[str] = []
    for line in text.splitlines():
        key = line.split("=", 1)[0].strip()
        lines.append(f"{key}={left.pop(key)}" if "=" in line and key in left else line)
    lines.extend(f"{key}={value}" for key, value in left.items())
    return "".join(f"{line}\n" for line in lines)
