"""Finds topics and brokers: routes, the choice of a queue or replica, and sessions that follow them."""
