"""The table of `tests/data/broker/acks.txt`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batonmq.protocol.codes import ResponseCode

TABLE = Path(__file__).parent / "data" / "broker" / "acks.txt"


@dataclass(frozen=True)
class AckCase:
    """One line; the columns are explained in the file."""

    text: str
    mode: str
    all_ack: bool
    in_sync_replicas: int
    min_in_sync_replicas: int
    auto: bool
    members: int
    slaves: str
    disk: str
    wait: bool
    code: ResponseCode
    also_java: bool


def ack_cases() -> list[AckCase]:
    cases = []
    for line in TABLE.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            mode, all_ack, need, least, auto, members, slaves, disk, wait, answer, *mark = words
            cases.append(
                AckCase(
                    " ".join(words[:-1] if mark else words),
                    mode,
                    all_ack == "yes",
                    int(need),
                    int(least),
                    auto == "yes",
                    int(members),
                    slaves.replace("-", ""),
                    disk,
                    wait == "yes",
                    ResponseCode[answer],
                    mark == ["*"],
                )
            )
    return cases
