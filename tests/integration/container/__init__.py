"""Broker containers: on the test's event loop, and as processes."""
