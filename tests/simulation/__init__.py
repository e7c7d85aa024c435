"""Deterministic simulation: whole programs on virtual time, with crashes, partitions and lost writes."""
