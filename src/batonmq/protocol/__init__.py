"""Every fact of the wire and of RocketMQ's names, declared once; no I/O."""
