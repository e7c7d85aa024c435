"""Reports errors in the options of a stream where Spark shows them."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from batonmq.spark.clear_errors import with_clear_errors


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot begin: its first call raises the error.

    Spark 4.2 and 4.3 do not show an error of `DataSource.streamReader`, but an `UnboundLocalError` of their
    own.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @with_clear_errors
    def _refuse(self) -> NoReturn:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def getDefaultReadLimit(self) -> NoReturn:
        self._refuse()

    def initialOffset(self) -> NoReturn:
        self._refuse()

    def latestOffset(self, start: Any, limit: Any) -> NoReturn:
        self._refuse()

    def partitions(self, start: Any, end: Any) -> NoReturn:
        self._refuse()

    def read(self, partition: Any) -> NoReturn:
        self._refuse()
