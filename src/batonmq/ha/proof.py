"""Both ends of a link prove that they know the group's shared secret (`haSecret`), without I/O.

    slave                                     master
      greeting(nonce a)  ------------------>
                         <------------------  challenge(nonce b, proof of a and b as master)
      proof of a and b as slave, handshake -->

A proof is a keyed BLAKE2b over the prover's role and both nonces, so it is valid neither for another
connection nor for the other role. Before its proof a peer gets no data, and nothing it says is believed. What
is sent afterwards is not covered: TLS (`security.py`) protects against an attacker who can change packets on
the way.
"""

from __future__ import annotations

import hashlib
import hmac

from batonmq.protocol.ha_frames import (
    CHALLENGE_SIZE,
    GREETING_SIZE,
    NONCE_SIZE,
    PROOF_SIZE,
    Challenge,
    Greeting,
    HAFrameError,
    Proof,
    begins_with_proof,
    proof_version,
)


class ProofFailed(HAFrameError):
    """The peer does not know the secret, or knows another one."""


def key_of(secret: str) -> bytes:
    """The key that a configured secret stands for."""
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"batonmq-ha").digest()


def _proof(key: bytes, role: bytes, slave_nonce: bytes, master_nonce: bytes) -> bytes:
    return hashlib.blake2b(role + slave_nonce + master_nonce, key=key, digest_size=PROOF_SIZE).digest()


def _no_proof(data: bytes, peer: str) -> ProofFailed:
    version = proof_version(data)
    if version is None:
        return ProofFailed(f"haSecret is set here, and {peer} offers no proof of it")
    return ProofFailed(
        f"{peer} proves haSecret in version {version}, this broker reads version P: upgrade the older "
        "one of the two"
    )


class MasterProof:
    """The master's end, for the first bytes of one connection."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        """`nonce`: `NONCE_SIZE` random bytes, never used before."""
        assert len(nonce) == NONCE_SIZE
        self._key = key
        self._nonce = nonce
        self._slave_nonce = b""
        self._rest = b""
        self.done = False
        """The slave knows the secret."""

    @property
    def challenged(self) -> bool:
        """The slave has been shown that this side knows the secret; it is its turn."""
        return bool(self._slave_nonce)

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(what to answer, what came behind the proof). At most 35 bytes are kept. Raises `ProofFailed`."""
        self._rest += data
        if not begins_with_proof(self._rest):
            raise _no_proof(self._rest, "the peer")
        if not self._slave_nonce:
            if len(self._rest) < GREETING_SIZE:
                return b"", b""
            self._slave_nonce = Greeting.decode(self._rest[:GREETING_SIZE]).nonce
            if len(self._rest) > GREETING_SIZE:
                raise ProofFailed("bytes before the challenge")
            self._rest = b""
            proof = _proof(self._key, b"master", self._slave_nonce, self._nonce)
            return Challenge(self._nonce, proof).encode(), b""
        if len(self._rest) < GREETING_SIZE:
            return b"", b""
        given = Proof.decode(self._rest[:GREETING_SIZE]).proof
        if not hmac.compare_digest(given, _proof(self._key, b"slave", self._slave_nonce, self._nonce)):
            raise ProofFailed("its haSecret is not the one set here")
        self.done = True
        return b"", self._rest[GREETING_SIZE:]


class SlaveProof:
    """The slave's end."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        """`nonce`: as `MasterProof`'s."""
        assert len(nonce) == NONCE_SIZE
        self._key = key
        self._nonce = nonce
        self._rest = b""
        self.done = False
        """The master knows the secret."""

    def open(self) -> bytes:
        """The first bytes to send."""
        return Greeting(self._nonce).encode()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(what to answer, what came behind the challenge). Raises `ProofFailed`."""
        self._rest += data
        if not begins_with_proof(self._rest):
            raise _no_proof(self._rest, "the master")
        if len(self._rest) < CHALLENGE_SIZE:
            return b"", b""
        challenge = Challenge.decode(self._rest[:CHALLENGE_SIZE])
        expected = _proof(self._key, b"master", self._nonce, challenge.nonce)
        if not hmac.compare_digest(challenge.proof, expected):
            raise ProofFailed("the master's haSecret is not the one set here")
        self.done = True
        return (
            Proof(_proof(self._key, b"slave", self._nonce, challenge.nonce)).encode(),
            self._rest[CHALLENGE_SIZE:],
        )
