"""Helpers for handlers: request bodies, pages of long lists, data versions."""

from __future__ import annotations

from typing import Final, TypeVar

from batonmq.net.dispatch import Request
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import decode, decode_request

T = TypeVar("T")


def required_body(request: Request, kind: type[T]) -> T:
    """The decoded body. Raises MQError (SYSTEM_ERROR) if it is missing or not a `kind`."""
    body = request.command.body
    if not body:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"the request needs a body ({kind.__name__})")
    try:
        return decode_request(body, kind)
    except ValueError as error:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"the body is not a {kind.__name__}: {error}") from None


PAGE_SIZE: Final = 1000
"""Largest number of topics or groups in one answer when the client reads a list in pages."""


def version_of(text: str | None) -> DataVersion | None:
    """The data version that a header carries as JSON. Raises ValueError."""
    return decode(text.encode(), DataVersion) if text else None
