"""Real processes in network namespaces, faults, and a history checker: ``python -m tests.chaos``."""
