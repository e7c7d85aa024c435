"""Signatures of requests: who sends one, and that nobody changed it.

The signature is the HMAC-SHA1, in Base64, of the header's values in the order of their keys, followed by the
body; the key is the user's secret. Source: `AclClientRPCHook` and `AclUtils` of Apache RocketMQ 5.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from batonmq.protocol.buffers import Buffer

ACCESS_KEY: Final = "AccessKey"
"""Header field with the user's name."""
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret, with which a client signs its requests.

    Args:
        access_key: the user's name.
        secret_key: the user's password; never shown.
        security_token: sent with each request where the cluster wants one.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")

    def sign(self, ext: Mapping[str, str], body: Buffer | Sequence[Buffer]) -> dict[str, str]:
        """The header's fields with user and signature; those of another signer are replaced."""
        signed = {key: value for key, value in ext.items() if key != SIGNATURE and key != SECURITY_TOKEN}
        signed[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            signed[SECURITY_TOKEN] = self.security_token
        signed[SIGNATURE] = signature(self.secret_key, signed, body)
        return signed


def unsigned(ext: Mapping[str, str]) -> dict[str, str]:
    """The header's fields without user and signature."""
    return {key: value for key, value in ext.items() if key not in (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)}


def signature(secret_key: str, ext: Mapping[str, str], body: Buffer | Sequence[Buffer]) -> str:
    """The signature of these fields, without the one that they may have, and this body."""
    values = [ext[key] for key in sorted(ext) if key != SIGNATURE]
    buffers: Sequence[Buffer] = [body] if isinstance(body, bytes | bytearray | memoryview) else body
    content = b"".join(("".join(values).encode(), *buffers))
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def signed_by(secret_key: str, ext: Mapping[str, str], body: Buffer) -> bool:
    """Whether the fields carry the signature of this secret. Takes as long for a wrong one as for the right
    one."""
    wanted = signature(secret_key, ext, body)
    return hmac.compare_digest(wanted.encode(), ext.get(SIGNATURE, "").encode())
