"""The operations of an administrator, as async functions that return data.

One module per subject. Every function takes the session (`batonmq.admin.session.Admin`) first. Nothing here
prints or knows the command line, so that the commands, a console and Python programs share it.

All functions raise `MQError` for a refusal, `NetError` when a program cannot be reached and `AdminError` for
what cannot be done; docstrings name only special cases. An address is ``host:port``; a `controllers` argument
is ``host:port;host:port``. Times are ms since the epoch, rates are messages per second.
"""
