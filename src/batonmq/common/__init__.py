"""Shared by all rooms: clock, configuration, logging, metrics, files."""
