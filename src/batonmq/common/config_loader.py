"""Configuration objects from files, the command line and requests."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from batonmq.common.access_control import SWITCHES, check_switch
from batonmq.common.config import ConfigError, describe, did_you_mean, keys_of
from batonmq.common.config_values import value_of
from batonmq.common.properties import PropertyLine, property_lines

log = logging.getLogger(__name__)


class NoConfigFile(ConfigError):
    """The file holds something else; the message shows a piece of it."""


T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")


def _check_is_properties(lines: Sequence[PropertyLine], known: Container[str]) -> None:
    """Raises `ValueError` for a text that is something else: taken for properties, all of it would be unknown
    keys, and the program would start with nothing but defaults."""
    strange = next((line for line in lines if not line.plain), None)
    if strange is not None and not any(line.key in known for line in lines):
        shown = f"{strange.key} {strange.value}"[:40].strip()
        raise ValueError(
            f"is not a configuration file: line {strange.number} ({shown!r}) is not key=value, "
            "and no line sets a key that is known here"
        )


@overload
def load(
    path: Path | None, c1: type[T], /, *, overrides: Mapping[str, str] = ..., text: str | None = ...
) -> tuple[T]: ...
@overload
def load(
    path: Path | None,
    c1: type[T],
    c2: type[U],
    /,
    *,
    overrides: Mapping[str, str] = ...,
    text: str | None = ...,
) -> tuple[T, U]: ...
@overload
def load(
    path: Path | None,
    c1: type[T],
    c2: type[U],
    c3: type[V],
    /,
    *,
    overrides: Mapping[str, str] = ...,
    text: str | None = ...,
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
    text: str | None = ...,
) -> tuple[T, U, V, W]: ...
@overload
def load(
    path: Path | None, /, *classes: type[Any], overrides: Mapping[str, str] = ..., text: str | None = ...
) -> tuple[Any, ...]: ...
def load(
    path: Path | None, /, *classes: type[Any], overrides: Mapping[str, str] = {}, text: str | None = None
) -> tuple[Any, ...]:
    """Fill configuration classes from a properties file; ``overrides`` (the command line) win over the file.
    ``text``: the file's contents, if the caller has read it.

    A key that several classes declare goes to each of them. An unknown key is logged as a warning that names
    the nearest known one: RocketMQ files carry keys that do not concern us.

    Raises:
        NoConfigFile: the file is not a properties file.
        ConfigError: the file cannot be read, a value does not fit its key, a relation of keys is broken, or
            access control is switched on for a program that has none.
    """
    values: dict[str, tuple[str, str]] = {}
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8") if text is None else text
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        try:
            lines = list(property_lines(text))
            _check_is_properties(lines, keys_of(classes))
        except ValueError as error:
            raise NoConfigFile(f"{path}: {error}") from None
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
            arguments[info.owner][info.field] = value_of(text, info)
        except ValueError as error:
            raise ConfigError(f"{source}: {info.key}={text}: {error}") from None
    reasons = {key: why for cls in classes for key, why in getattr(cls, "HAS_NO_EFFECT", {}).items()}
    for key, (text, source) in values.items():
        _check_switch(source, key, text, known)
        if key in reasons:
            log.warning("%s: %s has no effect here: %s", source, key, reasons[key])
        elif key not in known and key not in SWITCHES:
            log.warning("%s: unknown key %s is ignored%s", source, key, did_you_mean(key, known))
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


def _check_switch(source: str, key: str, text: str, known: Container[str]) -> None:
    try:
        check_switch(key, text, known)
    except ValueError as error:
        raise ConfigError(f"{source}: {key}={text}: {error}") from None


def update(config: T, changes: Mapping[str, str], *, source: str = "updateConfig") -> T:
    """A copy of ``config`` with some keys changed, as `updateBrokerConfig` asks; foreign keys are left alone.

    Raises:
        ConfigError: a value does not fit its key, or would switch access control on.
    """
    arguments: dict[str, Any] = {}
    for key, text in changes.items():
        _check_switch(source, key, text, ())
    for info in describe(type(config)):
        if info.key in changes:
            try:
                arguments[info.field] = value_of(changes[info.key], info)
            except ValueError as error:
                raise ConfigError(f"{source}: {info.key}={changes[info.key]}: {error}") from None
    return dataclasses.replace(config, **arguments) if arguments else config  # type: ignore[type-var]
