"""Replication in groups without controllers: RocketMQ's plain stream, with fixed roles."""
