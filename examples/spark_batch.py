"""Count the orders of a topic by tag, with Spark.

Shows the batch source: every message from the first to the last one that is confirmed at this moment. Needs
`pip install 'batonmq[spark]'` and a Java runtime, version 17 or newer.

    python examples/spark_batch.py [NAME_SERVERS]
"""

import sys

from batonmq.spark.session import spark_session


def main(namesrv: str) -> None:
    spark = spark_session("orders by tag", master="local[2]")
    orders = (
        spark.read.format("rocketmq")
        .option("namesrvAddr", namesrv)
        .option("subscribe", "orders")
        .schema("tags string, queueId int, queueOffset bigint")  # only what is named is decoded
        .load()
    )
    for row in orders.groupBy("tags").count().orderBy("tags").collect():
        print(f"{row['tags']}: {row['count']} orders")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["127.0.0.1:9876"])
