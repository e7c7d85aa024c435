"""The broker id that the controller assigned, on disk as RocketMQ keeps it.

``brokerIdentity``: ``cluster#brokerName#id``. While an id is being claimed ``brokerIdentity-temp`` holds
``cluster#brokerName#id#checkCode``; the check code lets a broker that crashed in between claim its id again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batonmq.common.config import ConfigError

MAX_ID: Final = (1 << 63) - 1
"""Broker ids are Java's long."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this replica is; `check_code` only while the id is being claimed."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str | None = None

    def encode(self) -> str:
        parts = [self.cluster, self.broker_name, str(self.broker_id)]
        return "#".join(parts if self.check_code is None else [*parts, self.check_code])


def decode(text: str, *, claiming: bool) -> Identity:
    """Raises ValueError saying what is wrong."""
    parts = text.strip().split("#")
    if len(parts) != (4 if claiming else 3) or not all(parts):
        raise ValueError(f"{text.strip()!r} is not cluster#brokerName#id{'#checkCode' if claiming else ''}")
    digits = parts[2]
    # int() would take "-3", "+7" and "1_0" too.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and 0 < int(digits) <= MAX_ID):
        raise ValueError(f"{digits!r} is no broker id: that is a number from 1 on")
    return Identity(parts[0], parts[1], int(digits), parts[3] if claiming else None)


class IdentityFiles:
    """Both files. All methods block for a moment; writes are durable on return."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.claim_path = path.with_name(path.name + "-temp")

    def load(self, cluster: str, broker_name: str) -> Identity | None:
        """The id, or the claim that was under way, or None. Raises ConfigError for files that cannot be this
        broker's: with another broker's id it would overwrite that one's part in the group."""
        for path, claiming in ((self.path, False), (self.claim_path, True)):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: cannot be read: {error}") from None
            if not text.strip():
                continue  # created, then the machine stopped
            try:
                identity = decode(text, claiming=claiming)
            except ValueError as error:
                raise ConfigError(f"{path}: {error}") from None
            if (identity.cluster, identity.broker_name) != (cluster, broker_name):
                raise ConfigError(
                    f"{path} belongs to broker {identity.broker_name} of cluster {identity.cluster}, not to "
                    f"brokerName={broker_name} of brokerClusterName={cluster}: use another storePathRootDir, "
                    "or the former names"
                )
            return identity
        return None

    def save(self, identity: Identity) -> None:
        """Write the id, or the claim; an id ends its claim."""
        if identity.check_code is not None:
            self._write(self.claim_path, identity.encode())
        else:
            self._write(self.path, identity.encode())
            self.claim_path.unlink(missing_ok=True)

    def drop_claim(self) -> None:
        """The claimed id went to somebody else."""
        self.claim_path.unlink(missing_ok=True)

    def give_up(self) -> Path:
        """The id is not ours any more; returns where the file is kept."""
        kept = self.path.with_name(self.path.name + "-former")
        self.path.replace(kept)
        return kept

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
