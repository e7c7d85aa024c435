"""RocketMQ's keys that mean nothing here."""

from __future__ import annotations

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.unused_keys import UNUSED_KEYS
from batonmq.common.config import keys_of
from batonmq.common.config_loader import build
from batonmq.ha.config import HAConfig
from batonmq.store.config import StoreConfig


def test_no_key_both_exists_and_has_no_effect() -> None:
    assert UNUSED_KEYS.keys() & keys_of((BrokerConfig, StoreConfig, HAConfig)) == set()


def test_a_file_that_sets_one_gets_a_warning_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    values = dict.fromkeys(UNUSED_KEYS, ("true", "broker.conf"))
    build(values, BrokerConfig, StoreConfig, HAConfig)
    assert caplog.messages == [
        f"broker.conf: {key} has no effect here: {reason}" for key, reason in UNUSED_KEYS.items()
    ]
