"""``format("rocketmq-store")``: store directories as tables, without a broker."""
