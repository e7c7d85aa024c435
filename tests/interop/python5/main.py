"""RocketMQ's Python client of the proxy (gRPC, rocketmq-python-client) at work.

    python main.py ENDPOINT PREFIX SCENARIO [STOP]

Topics and groups begin with PREFIX. Prints one JSON object with what the client saw, and exits with 1 if the
client reported an error. The client's own log goes below ~/logs. It runs in an environment of its own, made
from requirements.lock.
"""

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import InternalErrorException

ENDPOINT, PREFIX, SCENARIO = sys.argv[1:4]
ALL = FilterExpression()


def simple():
    """Messages with tags and properties; a simple consumer filters, acknowledges and hides."""
    topic = PREFIX + "Normal"
    with Sending(topic) as producer:
        for i in range(20):
            message = text(topic, f"m{i}")
            message.tag = "odd" if i % 2 else "even"
            message.keys = f"k{i}"
            message.add_property("number", str(i))
            producer.send(message)
    even = FilterExpression("even")
    return {
        "even": receive("simple_even", topic, even, 10, 20),
        "sql": receive(
            "simple_sql", topic, FilterExpression("number BETWEEN 3 AND 6", FilterType.SQL), 4, 20
        ),
        # The group has acknowledged all of them.
        "again": receive("simple_even", topic, even, 1, 4),
        **hide(topic),
    }


def hide(topic):
    hidden, back, first, attempt = set(), set(), 0, 0
    with Receiving("simple_hide", topic, FilterExpression("odd")) as consumer:
        end = time.monotonic() + 20
        while len(hidden) < 10 and time.monotonic() < end:
            for message in received(consumer, 60):
                consumer.change_invisible_duration(message, 11)
                hidden.add(message.body.decode())
        began = time.monotonic()
        while len(back) < 10 and time.monotonic() < began + 40:
            for message in received(consumer, 60):
                first = first or int((time.monotonic() - began) * 1000)
                attempt = message.delivery_attempt
                consumer.ack(message)
                back.add(message.body.decode())
    return {"hidden": len(hidden), "back": len(back), "first_ms": first, "attempt": attempt}


def ordered():
    """Two message groups; the first try of one message fails, and those behind it wait."""
    topic = PREFIX + "Ordered"
    with Sending(topic) as producer:
        for i in range(40):
            message = text(topic, str(i // 2))
            message.message_group = f"g{i % 2}"
            producer.send(message)
    got = {"g0": [], "g1": []}
    tries = []

    def listen(message):
        body = message.body.decode()
        if message.message_group == "g1" and body == "7":
            tries.append(body)
            if len(tries) == 1:
                return False
        got[message.message_group].append(body)
        return True

    with Listening("ordered_push", topic, listen):
        until(40, lambda: len(got["g0"]) >= 20 and len(got["g1"]) >= 20)
    return {**got, "tries": len(tries)}


def timed():
    """A message for later arrives then; one that was recalled does not."""
    topic = PREFIX + "Timed"
    due = int(time.time()) + 4
    with Sending(topic) as producer:
        for body in ("later", "recalled"):
            message = text(topic, body)
            message.delivery_timestamp = due
            receipt = producer.send(message)
        producer.recall_message(topic, receipt.recall_handle)
    found = receive("timed_readers", topic, ALL, 1, 20)
    early = max(0, due - time.time())
    return {"early_ms": int(early * 1000), "timed": found + receive("timed_readers", topic, ALL, 1, 4)}


class Checker(TransactionChecker):
    checks = 0

    def check(self, message):
        self.checks += 1
        checked = message.body == b"checked"
        return TransactionResolution.COMMIT if checked else TransactionResolution.ROLLBACK


def transactions():
    """Committed, rolled back, and left to the check."""
    topic = PREFIX + "Transactions"
    checker = Checker()
    with Sending(topic, checker=checker) as producer:
        for what in ("committed", "rolled back", "checked", "checked and rolled back"):
            transaction = producer.begin_transaction()
            producer.send(text(topic, what), transaction)
            if what == "committed":
                transaction.commit()
            elif what == "rolled back":
                transaction.rollback()
        found = receive("transaction_readers", topic, ALL, 2, 60)
        until(30, lambda: checker.checks >= 2)
        return {"transactions": found + receive("transaction_readers", topic, ALL, 1, 4)}


def push():
    """A message that fails once comes again; one that always fails becomes a dead letter."""
    topic = PREFIX + "Pushed"
    tries = {"once": 0, "twice": 0, "never": 0}

    def listen(message):
        body = message.body.decode()
        tries[body] += 1
        return not (body == "never" or (body == "twice" and tries[body] < 2))

    with Listening("pushed", topic, listen):
        with Sending(topic) as producer:
            for what in tries:
                producer.send(text(topic, what))
        until(60, lambda: tries["never"] >= 3 and tries["twice"] >= 2)
        time.sleep(2)
    return tries


def kill():
    """Sends and consumes until the file STOP exists; then every acknowledged message must have come."""
    topic = PREFIX + "Normal"
    stop = Path(sys.argv[4])
    times = {}
    lock = threading.Lock()

    def listen(message):
        with lock:
            body = message.body.decode()
            times[body] = times.get(body, 0) + 1
        return True

    acknowledged, failures, longest, number = [], 0, 0.0, 0
    with Listening("kill_readers", topic, listen):
        with Sending(topic) as producer:
            last = time.monotonic()
            while not stop.exists():
                body = f"kill-{number}"
                number += 1
                try:
                    producer.send(text(topic, body))
                    acknowledged.append(body)
                    longest = max(longest, time.monotonic() - last)
                    last = time.monotonic()
                except Exception:
                    failures += 1
                time.sleep(0.005)
        until(60, lambda: all(body in times for body in acknowledged))
    return {
        "sent": len(acknowledged),
        "lost": sum(body not in times for body in acknowledged),
        "failures": failures,
        "gap_ms": int(longest * 1000),
        "repeats": sum(times.values()) - len(times),
    }


def configuration():
    return ClientConfiguration(ENDPOINT, Credentials(), request_timeout=5)


def text(topic, body):
    message = Message()
    message.topic = topic
    message.body = body.encode()
    return message


class Working:
    """A client between startup and shutdown."""

    def __enter__(self):
        self.client.startup()
        return self.client

    def __exit__(self, *_):
        self.client.shutdown()


class Sending(Working):
    def __init__(self, topic, checker=None):
        self.client = Producer(configuration(), (topic,), checker=checker)


class Receiving(Working):
    def __init__(self, group, topic, filter_expression):
        self.client = SimpleConsumer(
            configuration(), PREFIX + group, {topic: filter_expression}, await_duration=5
        )


class Listener(MessageListener):
    def __init__(self, listen):
        self._listen = listen

    def consume(self, message):
        return ConsumeResult.SUCCESS if self._listen(message) else ConsumeResult.FAILURE


class Listening(Working):
    def __init__(self, group, topic, listen):
        self.client = PushConsumer(configuration(), PREFIX + group, Listener(listen), {topic: ALL})


def received(consumer, invisible_s):
    """One receive. The client may ask before its settings have reached the proxy, which answers with an
    internal error then."""
    for _ in range(10):
        try:
            return consumer.receive(16, invisible_s)
        except InternalErrorException as error:
            if '"settings" is null' not in str(error):
                raise
            time.sleep(0.2)
    raise TimeoutError("the proxy has no settings of the client")


def receive(group, topic, filter_expression, wanted, limit_s):
    """Acknowledges what comes until so many came or the time is over; the bodies, sorted."""
    got = []
    with Receiving(group, topic, filter_expression) as consumer:
        end = time.monotonic() + limit_s
        while len(got) < wanted and time.monotonic() < end:
            for message in received(consumer, 30):
                consumer.ack(message)
                got.append(message.body.decode())
    return sorted(got)


def until(limit_s, done):
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(0.05)


SCENARIOS = {
    "simple": simple,
    "ordered": ordered,
    "timed": timed,
    "transactions": transactions,
    "push": push,
    "kill": kill,
}

if __name__ == "__main__":
    status = 0
    try:
        found = SCENARIOS[SCENARIO]()
    except Exception:
        found, status = {"error": traceback.format_exc()}, 1
    print(json.dumps(found), flush=True)
    os._exit(status)  # its threads may outlive a shutdown
