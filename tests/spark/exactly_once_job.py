"""A job for the kill matrix: copies a topic to another one, exactly once, until it has copied all.

``python -m tests.spark.exactly_once_job NAMESRV FROM TO CHECKPOINT ROWS-A-BATCH``
"""

from __future__ import annotations

import sys

from batonmq.spark.session import spark_session


def main(namesrv: str, source: str, target: str, checkpoint: str, rows: str) -> None:
    spark = spark_session(
        "exactly-once",
        master="local[2,16]",  # a task may fail 16 times: its Python worker is killed
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            # The check of what readers saw needs the offsets of all batches.
            "spark.sql.streaming.minBatchesToRetain": "1000000",
        },
    )
    stream = (
        spark.readStream.format("rocketmq")
        .options(namesrvAddr=namesrv, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", rows)
        .load()
        .selectExpr("value", "cast(value as string) as shardingKey")
    )
    query = (
        stream.writeStream.format("rocketmq")
        .options(namesrvAddr=namesrv, topic=target, deliveryGuarantee="exactlyOnce", maxBatchRows="100")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
