"""The broker container (RIP-31): several brokers in one process, or in a few, behind one admin port."""
