"""``df.write.format("rocketmq")`` and ``writeStream``: rows become messages."""
