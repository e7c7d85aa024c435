"""Values of a configuration and their text, as it stands in a properties file and in requests."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from batonmq.common.config import KeyInfo, describe

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


def value_of(text: str, info: KeyInfo) -> Any:
    """The value of a key from its text. Raises `ValueError` saying what was expected."""
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
