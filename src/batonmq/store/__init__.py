"""The message store: commit log, consume queues, index, recovery. It knows no feature."""
