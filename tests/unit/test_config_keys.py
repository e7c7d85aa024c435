"""A configuration key that is accepted is honoured: some code reads it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import batonmq
from batonmq.broker.config import BrokerConfig
from batonmq.common.config import ConfigError, changeable_keys, describe
from batonmq.common.config_loader import build
from batonmq.common.metrics_config import MetricsConfig
from batonmq.container.config import ContainerConfig
from batonmq.controller.config import ControllerConfig
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.net.tls import TlsConfig
from batonmq.raft.config import RaftConfig
from batonmq.store.config import StoreConfig

CONFIGS = (
    BrokerConfig,
    StoreConfig,
    HAConfig,
    ContainerConfig,
    ControllerConfig,
    NamesrvConfig,
    TlsConfig,
    RaftConfig,
)

NOT_READ = {
    "enable_d_leger_commit_log": "only false is accepted: a group so configured would not be replicated",
    "enable_calc_filter_bit_map": "only false is accepted: bit maps of filters change no result",
    "store_type": "only default is accepted: RocketMQ's RocksDB store is not read here",
    "message_store_plug_in": "only empty is accepted: plug-ins are Java classes",
    "rocketmq_home": "reported by getNamesrvConfig, which mqadmin's users look at; nothing is read from it",
}
"""Fields that only their own checks look at, and why they exist."""


def attributes_read(node: ast.AST) -> set[str]:
    """Names of all attributes that the code reads, except in the checks of a configuration class."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name == "__post_init__":
            continue
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Load):
            found.add(child.attr)
        found |= attributes_read(child)
    return found


def test_every_key_is_read_by_some_code() -> None:
    read: set[str] = set()
    for path in Path(batonmq.__file__).parent.rglob("*.py"):
        read |= attributes_read(ast.parse(path.read_text(encoding="utf-8")))
    fields = {field.name for config in CONFIGS for field in dataclasses.fields(config)}
    assert fields - read == NOT_READ.keys()


def test_every_key_says_what_it_does() -> None:
    assert [info.key for info in describe(*CONFIGS) if not info.doc] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enableCalcFilterBitMap", "true"),
        ("enableDLegerCommitLog", "true"),
        ("storeType", "defaultRocksDB"),
        ("messageStorePlugIn", "org.apache.rocketmq.tieredstore.TieredMessageStore"),
    ],
)
def test_what_is_not_built_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={value}: .* not available here"):
        build({key: (value, "broker.conf")}, BrokerConfig, StoreConfig)


@pytest.mark.parametrize("key", ["enableLmq", "enableMultiDispatch"])
def test_light_queues_need_both_keys(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=true.* need both keys"):
        build({key: ("true", "broker.conf")}, StoreConfig)
    both = dict.fromkeys(("enableLmq", "enableMultiDispatch"), ("true", "broker.conf"))
    (config,) = build(both, StoreConfig)
    assert config.light_queues


def test_the_broker_id_of_rocketmqs_examples_is_none_of_its_own() -> None:
    """Its files for controller mode say -1; without controllers that would be nobody."""
    (config,) = build(
        {"brokerId": ("-1", "f"), "enableControllerMode": ("true", "f"), "controllerAddr": ("h:1", "f")},
        BrokerConfig,
    )
    assert config.broker_id == -1
    with pytest.raises(ConfigError, match="brokerId=-1"):
        build({"brokerId": ("-1", "f")}, BrokerConfig)


@pytest.mark.parametrize("key", ["processReadEvent", "isProcessReadEvent"])
def test_both_spellings_of_a_key_are_understood(key: str) -> None:
    (config,) = build({key: ("true", "controller.conf")}, ControllerConfig)
    assert config.is_process_read_event


@pytest.mark.parametrize(
    ("owner", "changeable", "fixed"),
    [
        (
            BrokerConfig,
            {"brokerPermission", "autoCreateTopicEnable", "namesrvAddr"},
            {"brokerName", "listenPort"},
        ),
        (StoreConfig, {"fileReservedTime", "maxMessageSize"}, {"storePathRootDir", "flushDiskType"}),
        (ControllerConfig, {"enableElectUncleanMaster"}, {"controllerRaftSecret", "configStorePath"}),
        (NamesrvConfig, {"supportActingMaster"}, {"listenPort"}),
        (ContainerConfig, {"namesrvAddr"}, {"listenPort", "brokerConfigPaths", "containerProcesses"}),
    ],
)
def test_some_keys_may_change_while_the_program_runs(
    owner: type, changeable: set[str], fixed: set[str]
) -> None:
    keys = changeable_keys(owner)
    assert changeable <= keys and keys.isdisjoint(fixed)


@pytest.mark.parametrize("owner", [HAConfig, TlsConfig, MetricsConfig])
def test_all_keys_of_some_classes_are_read_at_start_only(owner: type) -> None:
    assert changeable_keys(owner) == set()
