"""Shows a user's mistakes first, not below the tracebacks of Spark and of its Python worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from batonmq.spark.worker import in_spark_worker
from batonmq.store.errors import StoreError

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def clear_errors() -> Iterator[None]:
    """Raise these errors so that Spark shows only their text.

    An exception of a Python worker reaches the driver as text that begins with its traceback. Spark omits the
    traceback if SPARK_HIDE_TRACEBACK is set. A worker ends with the exception that it has reported, so the
    variable can be set for this one. In the user's own process it is not set.
    """
    try:
        yield
    except Exception as error:
        if in_spark_worker() and isinstance(error, _complete()):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _complete() -> tuple[type[Exception], ...]:
    """Errors with a complete text; a traceback adds nothing.

    Imported when there is an error: the processes in which Spark plans a query are new for most queries, and
    importing the network takes them longer than planning.
    """
    from batonmq.common.config import ConfigError
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError
    from batonmq.spark.fetch import UnknownTopic
    from batonmq.spark.options import ClearError
    from batonmq.spark.plan import DataLoss

    return ClearError, UnknownTopic, DataLoss, NetError, MQError, StoreError, ConfigError


def with_clear_errors(function: Callable[P, R]) -> Callable[P, R]:
    """`clear_errors` around a function."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with clear_errors():
            return function(*args, **kwargs)

    return wrapped
