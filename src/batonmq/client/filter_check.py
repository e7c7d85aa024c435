"""Has a broker check an expression over properties before anything is read with it."""

from __future__ import annotations

from typing import Final

from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import CheckClientRequestBody, SubscriptionData
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import CheckClientConfig
from batonmq.protocol.json import encode
from batonmq.protocol.tags import is_tag_type
from batonmq.routing.session import Session

_NO_FILTER: Final = "does not support consumer to filter message"
"""What all brokers say while `enablePropertyFilter` is off. They give the code of an internal error."""


async def check_subscription(session: Session, client_id: str, group: str, data: SubscriptionData) -> None:
    """Have a broker of the topic check an expression over properties; tags need no check.

    Raises `MQError` when the broker does not take it, the last `NetError` when no broker answered.
    """
    route = session.known_route(data.topic)
    if is_tag_type(data.expression_type) or route is None:
        return
    body = encode(CheckClientRequestBody(client_id, group, data))
    failure: NetError | None = None
    for address in filter(None, map(route.replica, sorted(route.brokers))):
        try:
            await session.net.call(address, CheckClientConfig(), body)
            return
        except NetError as error:
            failure = error
        except MQError as error:
            if _NO_FILTER not in error.remark:
                raise
            raise MQError(
                error.code,
                f"the broker at {address} does not filter by properties; set enablePropertyFilter=true in its"
                f" configuration ({error.remark})",
            ) from error
    if failure is not None:
        raise failure
