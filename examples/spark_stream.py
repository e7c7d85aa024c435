"""Append the new orders of a topic to Parquet files, each exactly once; run it again for what came since.

Shows the streaming source with a checkpoint and `availableNow`. Needs `pip install 'batonmq[spark]'` and a
Java runtime, version 17 or newer.

    python examples/spark_stream.py [NAME_SERVERS [DIRECTORY]]
"""

import sys

from batonmq.spark.session import spark_session


def main(namesrv: str = "127.0.0.1:9876", directory: str = "orders-archive") -> None:
    spark = spark_session("orders to parquet", master="local[2]")
    query = (
        spark.readStream.format("rocketmq")
        .options(namesrvAddr=namesrv, subscribe="orders", startingOffsets="earliest")
        .load()
        .selectExpr("broker", "queueId", "queueOffset", "tags", "cast(value as string) as body")
        .writeStream.format("parquet")
        .option("path", f"{directory}/data")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)  # or processingTime="10 seconds", to run on
        .start()
    )
    query.awaitTermination()
    new = sum(progress["numInputRows"] for progress in query.recentProgress)
    print(f"{new} new orders, {spark.read.parquet(f'{directory}/data').count()} in all")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
