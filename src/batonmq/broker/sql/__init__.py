"""SQL92 filters of subscriptions: expressions over the properties of messages.

`compile_expression` is the entry. Grammar, type rules and errors are those of RocketMQ's filter
(`org.apache.rocketmq.filter`); `docs/filters.md` describes them for users. No I/O.
"""

from batonmq.broker.sql.compiler import compile_expression, weight_of
from batonmq.broker.sql.errors import SqlError

__all__ = ["SqlError", "compile_expression", "weight_of"]
