"""One broker: shared state, and the parts that make up what it does."""
