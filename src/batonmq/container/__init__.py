"""The broker container (RIP-31): several brokers in one or a few processes, with one admin port."""
