"""Headers of the requests that brokers serve, and of their answers.

A request without fields still has a struct: its code is declared there. Bodies are named where there is one;
they are in `protocol/bodies`. Source: `RequestCode` and the `protocol.header` package of Apache RocketMQ 5.
"""
