"""The broker id that the controllers assigned, in RocketMQ's files.

``brokerIdentity``: ``cluster#brokerName#id``. While a broker claims an id, ``brokerIdentity-temp`` holds
``cluster#brokerName#id#checkCode``; with the check code it can claim the same id after a crash.
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
    """Identity of this replica; `check_code` is set only while it claims the id."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str | None = None

    def encode(self) -> str:
        parts = [self.cluster, self.broker_name, str(self.broker_id)]
        return "#".join(parts if self.check_code is None else [*parts, self.check_code])


def decode(text: str, *, claiming: bool) -> Identity:
    """Parse a file. Raises ValueError that names the fault."""
    parts = text.strip().split("#")
    if len(parts) != (4 if claiming else 3) or not all(parts):
        raise ValueError(f"{text.strip()!r} is not cluster#brokerName#id{'#checkCode' if claiming else ''}")
    digits = parts[2]
    # int() would take "-3", "+7" and "1_0" too.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and 0 < int(digits) <= MAX_ID):
        raise ValueError(f"{digits!r} is not a broker id: a broker id is a number from 1 up")
    return Identity(parts[0], parts[1], int(digits), parts[3] if claiming else None)


class IdentityFiles:
    """Both files. All methods block briefly; writes are durable on return."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.claim_path = path.with_name(path.name + "-temp")

    def load(self, cluster: str, broker_name: str) -> Identity | None:
        """The id, or the unfinished claim, or None. Raises ConfigError for a broken file or one of another
        broker: two brokers with one id would replace each other in the broker set. So it does for names with
        which the file could not be read again."""
        for key, name in (("brokerClusterName", cluster), ("brokerName", broker_name)):
            if "#" in name:
                raise ConfigError(f"{key}={name}: no '#' is allowed, it separates the parts of {self.path}")
        for path, claiming in ((self.path, False), (self.claim_path, True)):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: cannot be read: {error}") from None
            if not text.strip():
                continue  # the machine stopped right after the file was created
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
        """Write the id, or the claim; writing the id deletes the claim."""
        if identity.check_code is not None:
            self._write(self.claim_path, identity.encode())
        else:
            self._write(self.path, identity.encode())
            self.claim_path.unlink(missing_ok=True)

    def drop_claim(self) -> None:
        """Delete the claim: another replica has the id."""
        self.claim_path.unlink(missing_ok=True)

    def give_up(self) -> Path:
        """Drop the id. Returns the path to which the file was renamed."""
        kept = self.path.with_name(self.path.name + "-former")
        self.path.replace(kept)
        return kept

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
