"""The `batonmq` command."""
