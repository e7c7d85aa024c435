"""RocketMQ's own integration tests, run over the wire against processes of BatonMQ or of RocketMQ.

The jar ``rocketmq-test`` with classifier ``tests`` holds them. They expect a name server and three brokers
inside their own process; the classes below ``java/`` stand first on the class path and give them addresses of
running processes instead (`BaseConf`, `RemoteBroker`). `make interop-upstream` runs them;
docs/interop-upstream.md has the result.
"""
