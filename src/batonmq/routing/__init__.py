"""Where topics and brokers are: routes, the choice of a queue or replica, and sessions that follow them."""
