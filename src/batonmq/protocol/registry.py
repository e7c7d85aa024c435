"""Requests declared once: a code, a header, and what answers it.

`request` binds a header struct to its code; dispatch, client calls and the fuzz tests read `REQUESTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta

from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError

I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""Java's int."""
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's long."""

_FIELD = re.compile(r"`\$\.([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")


class Header(msgspec.Struct, rename="camel"):
    """A typed header; fields are camelCase on the wire, where every value is text.

    A field without default is one that RocketMQ demands (`CFNotNull`); ``None`` is never sent.
    """

    code: ClassVar[RequestCode]
    """The request's code; absent on response headers."""
    response: ClassVar[type[Header] | None] = None
    """Header of a successful answer, if it has one."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read the header from a frame's fields; unknown fields are ignored.

        Raises:
            MQError: SYSTEM_ERROR naming the field that is missing or has a value of the wrong type.
        """
        for name in _flags(cls):
            if ext.get(name, "true") not in ("true", "false"):
                # As Java's parseBoolean has it; msgspec would take "1" for true and refuse "yes".
                ext = {**ext, name: "true" if ext[name].lower() == "true" else "false"}
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, _explain(str(error), ext)) from None

    def to_ext(self) -> dict[str, str]:
        """The header as a frame's fields."""
        ext: dict[str, str] = {}
        for attribute, wire in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, attribute)
            if value is None:
                continue
            if value is True:
                ext[wire] = "true"
            elif value is False:
                ext[wire] = "false"
            else:
                ext[wire] = str(value)
        return ext


def field(name: str, default: Any = msgspec.NODEFAULT) -> Any:
    """A field whose name on the wire is not its Python name in camelCase."""
    return msgspec.field(name=name, default=default)


class BrokerHeader(Header, kw_only=True):
    """A request that names the broker set it is for, as RocketMQ's clients do. Brokers do not need the name;
    RocketMQ's proxy, which passes such requests on, refuses those without."""

    broker_name: str | None = field("bname", None)


@cache
def _flags(cls: type[Header]) -> tuple[str, ...]:
    """Fields that are true or false, as they are called on the wire."""
    fields = msgspec.structs.fields(cls)
    return tuple(each.encode_name for each in fields if each.type in (bool, bool | None))


def _explain(error: str, ext: Mapping[str, str]) -> str:
    missing = _MISSING.search(error)
    if missing:
        return f"the custom field <{missing[1]}> is null"
    field = _FIELD.search(error)
    if field:
        return f"the custom field <{field[1]}> has the value {ext.get(field[1])!r}: {error.split(' - ')[0]}"
    return error


REQUESTS: dict[int, type[Header]] = {}
"""Every declared request by its code (filled when `batonmq.protocol.headers` modules are imported)."""

H = TypeVar("H", bound=type[Header])


def request(code: RequestCode, *, response: type[Header] | None = None) -> Callable[[H], H]:
    """Declare a request: its code, and the header of a successful answer if it has one."""

    def declare(header: H) -> H:
        known = REQUESTS.get(code)
        if known is not None and known.__qualname__ != header.__qualname__:
            raise TypeError(f"{code.name} is declared by {known.__name__} and by {header.__name__}")
        header.code = code
        header.response = response
        REQUESTS[code] = header
        return header

    return declare
