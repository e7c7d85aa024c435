"""The role that the configuration gives a broker without controllers."""

from __future__ import annotations

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.fixed_role import checked_role
from batonmq.common.config import ConfigError


@pytest.mark.parametrize(
    ("keys", "warns"),
    [
        ({"enable_slave_acting_master": True}, True),
        ({"enable_slave_acting_master": True, "total_replicas": 2}, False),
        ({"enable_slave_acting_master": True, "skip_pre_online": True}, False),
        ({}, False),
    ],
)
def test_a_slave_that_may_act_warns_if_its_master_will_repeat_what_it_did(
    keys: dict[str, bool | int], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    checked_role(BrokerConfig(broker_role="SLAVE", broker_id=1, **keys))  # type: ignore[arg-type]
    assert ("Set totalReplicas" in caplog.text) is warns


def test_a_slave_needs_an_id_and_a_master_has_none() -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        checked_role(BrokerConfig(broker_role="SLAVE", broker_id=0))
    assert checked_role(BrokerConfig(broker_role="ASYNC_MASTER", broker_id=7)).broker_id == 0
