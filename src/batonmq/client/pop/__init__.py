"""Pop consumption: what `SimpleConsumer` and `PopConsumer` stand on."""
