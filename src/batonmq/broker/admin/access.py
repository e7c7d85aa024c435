"""Requests about users and ACLs: refused, for there is no access control."""

from __future__ import annotations

from typing import Final

from batonmq.common.access_control import NO_ACCESS_CONTROL
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import RequestCode, ResponseCode

_CODES: Final = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
)


def register(dispatcher: Dispatcher) -> None:
    """Bind the requests of this module."""
    for code in _CODES:
        dispatcher.on_code(code, _refuse)


def _refuse(request: Request) -> Reply:
    """With the code of RocketMQ's broker without a store for users (`handleAuthException`)."""
    remark = f"{NO_ACCESS_CONTROL}: the request was not carried out"
    return Reply(code=int(ResponseCode.SYSTEM_ERROR), remark=remark)
