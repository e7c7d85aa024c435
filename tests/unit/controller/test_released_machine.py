"""Controllers of the last version and of this one get to the same state by the same entries."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import msgspec

from batonmq.controller import events
from batonmq.controller.machine import ControllerMachine
from tests.released import command, last_released

_OLD = """
import json, sys
from batonmq.controller.machine import ControllerMachine
for log in json.load(sys.stdin):
    machine = ControllerMachine()
    states = []
    for index, entry in enumerate(log, 1):
        machine.apply(index, bytes.fromhex(entry))
        states.append(machine.snapshot().hex())
    print(json.dumps(states))
"""


def random_log(rng: random.Random, count: int) -> list[bytes]:
    """Entries of version 1: registrations, heartbeats, losses and elections of a few broker sets."""
    now_ms, log = 1_000, []
    for _ in range(count):
        now_ms += rng.choice([0, 10, 300, 2_000])
        log.append(events.encode(now_ms, tuple(random_event(rng) for _ in range(rng.randint(1, 3))), 1))
    return log


def random_event(rng: random.Random) -> events.AnyEvent:
    name, number, unclean = rng.choice("ab"), rng.randint(1, 4), rng.random() < 0.2
    address = f"h{number}:1"
    match rng.randint(0, 9):
        case 0:
            return events.ApplyBrokerId("c", name, number, f"{address};{rng.randint(1, 2)}")
        case 1:
            return events.RegisterBroker("c", name, number, address)
        case 2:
            asked = rng.choice([events.NO_BROKER, number])
            return events.ElectMaster(name, asked, asked > 0 and rng.random() < 0.3, unclean, "test")
        case 3:
            members = tuple(sorted(rng.sample(range(1, 5), rng.randint(1, 3))))
            return events.AlterSyncStateSet(name, number, rng.randint(0, 5), members, rng.randint(0, 5))
        case 4:
            return events.ChannelClosed(rng.randint(1, 5), ((name, number),), unclean)
        case 5:
            known = tuple((name, broker_id, rng.randint(1, 5)) for broker_id in range(1, 4))
            silent = tuple((name, broker_id, rng.randint(0, 3_000)) for broker_id in range(1, 4))
            return events.LeaderStarted("n0", known, silent)
        case 6:
            return events.Scan(True, rng.random() < 0.7, unclean)
        case 7 if rng.random() < 0.2:
            return events.CleanBrokerData("c", name, rng.choice(["", str(number)]), unclean)
    return events.Heartbeats(tuple(random_beat(rng, name, number) for number in rng.sample(range(1, 5), 3)))


def random_beat(rng: random.Random, name: str, number: int) -> events.Beat:
    session, max_offset = rng.randint(1, 5), rng.randint(0, 9)
    return events.Beat("c", name, number, f"h{number}:1", session, 1_000, 0, max_offset, 0, 0)


def test_entries_of_version_1_mean_the_same_to_the_last_version(tmp_path: Path) -> None:
    released = last_released()
    sources = released.unpack(tmp_path)
    rng = random.Random(released.version)
    logs = [random_log(rng, 60) for _ in range(60)]
    done = subprocess.run(
        command(sources, "-c", _OLD),
        input=json.dumps([[entry.hex() for entry in log] for log in logs]).encode(),
        capture_output=True,
        check=True,
    )
    masters = 0
    for log, line in zip(logs, done.stdout.splitlines(), strict=True):
        machine, restored = ControllerMachine(), ControllerMachine()
        for index, (entry, state) in enumerate(zip(log, json.loads(line), strict=True), 1):
            machine.apply(index, entry)
            # What only this version has stands behind.
            old = msgspec.msgpack.decode(bytes.fromhex(state))
            assert msgspec.msgpack.decode(machine.snapshot())[: len(old)] == old
            restored.restore(bytes.fromhex(state))
            assert restored.snapshot() == machine.snapshot()
        masters += sum(each.master_epoch for each in machine.broker_sets.values())
    assert masters > 100
