"""One module per family of requests; each offers ``register(dispatcher, broker) -> None``."""
