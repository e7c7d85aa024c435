"""The broker container (RIP-31): several brokers in one process, or spread over a few, behind one admin port."""
