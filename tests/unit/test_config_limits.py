"""Every number in a configuration has limits, declared with the field; beyond them one line names file, key
and value. Data-driven over all keys of all programs, so that a new key cannot come without.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from batonmq.cli.configdoc import SECTIONS
from batonmq.common.config import INT_MAX, ConfigError, KeyInfo, describe
from batonmq.common.config_loader import load, update

CLASSES = [owner for _, owner in SECTIONS]
NUMBERS = [info for owner in CLASSES for info in describe(owner) if int in (info.type, *get_args(info.type))]
SWITCHES = [info for owner in CLASSES for info in describe(owner) if info.type is bool]
TIMER_WORDS = ("interval", "period", "timeout", "time", "millis", "mills", "ms", "secs", "seconds")
NOT_TIMERS = {
    "startAcceptSendRequestTimeStamp",  # a point in time
    "fileReservedTime",  # an age of files
    "jRaftSnapshotIntervalSecs",  # 0: never
    "heartbeatCoalesceMs",  # 0: not at all
    "waitSecondsForService",  # 0: not at all
}


def name(info: KeyInfo) -> str:
    return f"{info.owner.__name__}.{info.key}"


def refused(path: Path, info: KeyInfo, value: object) -> str:
    path.write_text(f"{info.key}={value}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, info.owner)
    line = str(caught.value)
    assert "\n" not in line and line.startswith(f"{path}: {info.key}={value}: ")
    return line


def test_there_are_numbers_and_switches() -> None:
    assert len(NUMBERS) > 60 and len(SWITCHES) > 40


@pytest.mark.parametrize("info", NUMBERS, ids=name)
def test_a_number_has_limits(info: KeyInfo, tmp_path: Path) -> None:
    limits, path = info.limits, tmp_path / "some.conf"
    assert limits is not None, f"declare {name(info)} with number(default, least, most)"
    assert info.default is None or limits.least <= info.default <= limits.most
    for value in (limits.least - 1, limits.most + 1, -(10**18), 10**18 + limits.most):
        assert "must be at" in refused(path, info, value)
        with pytest.raises(ConfigError, match=f"{info.key}={value}: must be at"):
            info.owner(**{info.field: value})
        with pytest.raises(ConfigError, match=f"updateConfig: {info.key}={value}: must be at"):
            update(info.owner(), {info.key: str(value)})
    for value in ("soon", "1_000", "1e3", "0x10", "٣", "9" * 30, "1 000", "--1"):
        assert "expected a whole number" in refused(path, info, value)


@pytest.mark.parametrize("info", NUMBERS, ids=name)
def test_what_becomes_a_timer_is_never_nothing(info: KeyInfo) -> None:
    words = info.field.split("_")
    if info.key not in NOT_TIMERS and not set(words).isdisjoint(TIMER_WORDS):
        assert info.limits is not None and info.limits.least >= 1 and info.limits.most <= INT_MAX


@pytest.mark.parametrize("info", SWITCHES, ids=name)
def test_a_switch_is_true_or_false(info: KeyInfo, tmp_path: Path) -> None:
    for value in ("yes", "on", "1", "0", "no", "tru", "", "truefalse"):
        assert refused(tmp_path / "some.conf", info, value).endswith("expected true or false")
