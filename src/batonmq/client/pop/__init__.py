"""Pop consumption: the parts that `SimpleConsumer` and `PopConsumer` share."""
