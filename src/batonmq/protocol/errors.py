"""Errors that cross the wire: a response code and a remark on one side, an exception on the other."""

from __future__ import annotations

from collections.abc import Mapping

from batonmq.protocol.codes import ResponseCode

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""What RocketMQ appends to remarks about topics and groups that do not exist."""


class MQError(Exception):
    """A request that ended with a response code other than SUCCESS.

    Handlers raise it, the dispatcher answers it; a client raises it when it gets such an answer.

    Attributes:
        code: a `ResponseCode`, or a bare number this release does not know.
        remark: the peer's own words; never empty here.
        ext: header fields that came with the answer (a pull that found nothing carries offsets), else empty.
        retryable: the same request may succeed a little later, or on another broker.
        stale_route: the client should ask the name server for the route again before it retries.
    """

    retryable = False
    stale_route = False

    def __init__(self, code: int, remark: str | None = None, ext: Mapping[str, str] | None = None) -> None:
        self.code = code
        self.remark = remark or code_name(code)
        self.ext: Mapping[str, str] = ext if ext is not None else {}
        super().__init__(code, self.remark)

    def __str__(self) -> str:
        return f"{code_name(self.code)}: {self.remark}"


class RetryableError(MQError):
    """The broker could not serve now: overload, a timeout, an internal fault."""

    retryable = True


class StaleRouteError(RetryableError):
    """The broker is not, or no longer, the one that serves this: ask for the route again."""

    stale_route = True


class TopicNotExistError(StaleRouteError):
    """No such topic, or not yet known where we asked."""


class NotLeaderError(StaleRouteError):
    """This controller is not the leader."""


class FrameError(Exception):
    """Bytes that are not a remoting frame; the connection they came on is no longer usable."""


_CLASSES: dict[int, type[MQError]] = {
    ResponseCode.SYSTEM_ERROR: RetryableError,
    ResponseCode.SYSTEM_BUSY: RetryableError,
    ResponseCode.FLOW_CONTROL: RetryableError,
    ResponseCode.POLLING_FULL: RetryableError,
    ResponseCode.FLUSH_DISK_TIMEOUT: RetryableError,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: RetryableError,
    ResponseCode.SLAVE_NOT_AVAILABLE: RetryableError,
    ResponseCode.NO_BUYER_ID: RetryableError,
    ResponseCode.NOT_IN_CURRENT_UNIT: RetryableError,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: RetryableError,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: RetryableError,
    ResponseCode.GO_AWAY: StaleRouteError,
    ResponseCode.SERVICE_NOT_AVAILABLE: StaleRouteError,
    ResponseCode.BROKER_NOT_EXIST: StaleRouteError,
    ResponseCode.NOT_LEADER_FOR_QUEUE: StaleRouteError,
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: StaleRouteError,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotExistError,
    ResponseCode.CONTROLLER_NOT_LEADER: NotLeaderError,
}


def code_name(code: int) -> str:
    """The name of a response code, e.g. ``TOPIC_NOT_EXIST (17)``."""
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"response code {code}"


def error_for(code: int, remark: str | None = None, ext: Mapping[str, str] | None = None) -> MQError:
    """The exception that stands for a response code; its class carries the retry flags."""
    return _CLASSES.get(code, MQError)(code, remark, ext)
