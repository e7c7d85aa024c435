"""Answers that several handlers of the controller give."""

from __future__ import annotations

from batonmq.controller.effects import Outcome
from batonmq.controller.proposer import NOT_LEADER
from batonmq.net.dispatch import Reply
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import encode

NOT_LEADER_REPLY = Reply(code=NOT_LEADER.code, remark=NOT_LEADER.remark)


def to_reply(outcome: Outcome) -> Reply:
    body = outcome.body
    return Reply(outcome.header, b"" if body is None else encode(body), outcome.code, outcome.remark)


def too_large(size: int, most: int) -> MQError:
    return MQError(
        ResponseCode.CONTROLLER_INVALID_REQUEST, f"a request of {size} bytes; {most} are more than it needs"
    )
