"""The query of the soak: topics into Parquet, until SIGTERM.

``python -m tests.spark.soak.job NAMESRV PATTERN TARGET CHECKPOINT``
"""

from __future__ import annotations

import signal
import sys

from batonmq.spark.session import spark_session

SCHEMA = (
    "topic string, broker string, queueId int, queueOffset bigint, timestamp timestamp, keys string, "
    "msgId string, value binary"
)


def main(namesrv: str, pattern: str, target: str, checkpoint: str) -> None:
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    spark = spark_session(
        "soak",
        master="local[2]",  # a task may not fail even once
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "768m",
            # When a batch became visible is the time of its log.
            "spark.sql.streaming.fileSink.log.deletion": "false",
        },
    )
    query = (
        spark.readStream.format("rocketmq")
        .schema(SCHEMA)
        .options(namesrvAddr=namesrv, subscribePattern=pattern, startingOffsets="earliest", groupId="soak")
        .load()
        .writeStream.format("parquet")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        query.awaitTermination(0.2)  # raises what ended the query
        if not query.isActive:
            raise RuntimeError("the query has ended, and nobody asked it to")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
