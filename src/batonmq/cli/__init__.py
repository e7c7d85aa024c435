"""The `batonmq` command."""

from batonmq.cli import early_stop as early_stop
