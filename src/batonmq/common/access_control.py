"""Keys with which RocketMQ's programs switch access control on.

Brokers have access control (`broker/auth_config.py`), without ACL 1.0 (`aclEnable`). A file that switches on
what its program does not have is refused: the program would be open to everyone who reaches its ports.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from batonmq.common.config_values import convert

_NOT_HERE: Final = (
    "only brokers know users; everyone who reaches the port of this program may do everything: set it to "
    "false, and let the network or TLS with client certificates (tls.server.authClient) keep others out"
)
SWITCHES: Final = {
    "aclEnable": "RocketMQ's ACL 1.0 (plain_acl.yml) is not supported; brokers have authenticationEnabled "
    "and authorizationEnabled",
    "migrateAuthFromV1Enabled": "the users of plain_acl.yml are not taken over; create them with createUser",
    "authenticationEnabled": _NOT_HERE,
    "authorizationEnabled": _NOT_HERE,
}
"""Switches, and why a program without the key does not take them."""


def check_switch(key: str, text: str, known: Container[str]) -> None:
    """Raises `ValueError` if the key switches on what a program that knows other keys (`known`) does not
    have, or is such a switch and no boolean."""
    if key in SWITCHES and key not in known and convert(text, bool):
        raise ValueError(SWITCHES[key])
