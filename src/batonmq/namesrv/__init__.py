"""The name server: where brokers are, and which topics they have."""
