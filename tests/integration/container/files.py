"""Files of a container and of its brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from batonmq.demo.ports import free_ports


@dataclass
class BrokerConf:
    """The file of one broker."""

    directory: Path
    name: str
    broker_id: int = 0
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.port = free_ports(1)[0]
        self.write()

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}-{self.broker_id}.conf"

    @property
    def store(self) -> Path:
        return self.directory / f"store-{self.name}-{self.broker_id}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def write(self, **changes: object) -> None:
        """`changes` last for this write only."""
        slave = {"brokerRole": "SLAVE", "brokerId": self.broker_id} if self.broker_id else {}
        values = {
            "brokerName": self.name,
            **slave,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "storePathRootDir": self.store,
            "mappedFileSizeCommitLog": 1 << 20,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            **self.settings,
            **changes,
        }
        self.path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
