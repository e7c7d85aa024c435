"""Replication between brokers: the port that the broker uses, and what every kind of stream shares."""
