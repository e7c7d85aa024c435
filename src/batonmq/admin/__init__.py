"""`batonmq admin`: mqadmin's commands."""
