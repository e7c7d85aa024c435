"""The shared secret of a link: who knows it gets through, nobody else learns or moves anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.ha.proof import MasterProof, ProofFailed, SlaveProof, key_of
from batonmq.protocol.ha_frames import Ack, MasterHandshake, SlaveHandshake

KEY, OTHER = key_of("the group's own secret"), key_of("another group's secret")
A, B = b"a" * 32, b"b" * 32
HELLO = SlaveHandshake(2).encode()


@given(st.integers(1, 200))
def test_both_sides_prove_in_pieces_of_any_size(size: int) -> None:
    master, slave = MasterProof(KEY, A), SlaveProof(KEY, B)
    to_master, to_slave = slave.open(), b""
    got_at_master = got_at_slave = b""
    while to_master or to_slave:
        piece, to_master = to_master[:size], to_master[size:]
        if piece and not master.done:
            answer, rest = master.receive(piece)
            to_slave += answer
            got_at_master += rest
        else:
            got_at_master += piece
        piece, to_slave = to_slave[:size], to_slave[size:]
        if piece and not slave.done:
            answer, rest = slave.receive(piece)
            to_master += answer + (HELLO if slave.done else b"")
            got_at_slave += rest
    assert master.done and slave.done
    assert (got_at_master, got_at_slave) == (HELLO, b"")


def test_what_follows_a_challenge_at_once_is_handed_on() -> None:
    master, slave = MasterProof(KEY, A), SlaveProof(KEY, B)
    challenge, _ = master.receive(slave.open())
    answer, rest = slave.receive(challenge + b"early")
    assert rest == b"early"
    assert master.receive(answer + HELLO) == (b"", HELLO)


@pytest.mark.parametrize(
    "data",
    [HELLO, Ack(0).encode(), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0", b"\0", b"BMQ\0" + bytes(60)],
)
def test_a_peer_that_offers_no_proof_is_refused_at_its_first_bytes(data: bytes) -> None:
    master = MasterProof(KEY, A)
    with pytest.raises(ProofFailed, match="offers no proof"):
        master.receive(data)
    assert not master.done
    with pytest.raises(ProofFailed, match="offers no proof"):
        SlaveProof(KEY, B).receive(MasterHandshake(0, -1, ()).encode())


def test_proofs_of_another_version_are_named() -> None:
    master = MasterProof(KEY, A)
    assert master.receive(b"BMQ") == (b"", b"")
    with pytest.raises(ProofFailed, match="version X, this broker reads version P: upgrade"):
        master.receive(b"X")
    with pytest.raises(ProofFailed, match="the master proves haSecret in version Q"):
        SlaveProof(KEY, B).receive(b"BMQQ" + bytes(60))


def test_another_secret_is_noticed_by_the_slave_first_and_by_the_master_too() -> None:
    master, slave = MasterProof(KEY, A), SlaveProof(OTHER, B)
    challenge, _ = master.receive(slave.open())
    with pytest.raises(ProofFailed, match="the master's haSecret"):
        slave.receive(challenge)
    liar = SlaveProof(OTHER, B)
    own_challenge, _ = MasterProof(OTHER, A).receive(liar.open())
    answer, _ = liar.receive(own_challenge)
    with pytest.raises(ProofFailed, match="its haSecret"):
        master.receive(answer + HELLO)
    assert not master.done and not slave.done


def test_proofs_of_another_connection_or_of_the_other_role_are_worth_nothing() -> None:
    recorded = SlaveProof(KEY, B)
    challenge, _ = MasterProof(KEY, A).receive(recorded.open())
    proof, _ = recorded.receive(challenge)
    again = MasterProof(KEY, b"c" * 32)
    again.receive(SlaveProof(KEY, B).open())
    with pytest.raises(ProofFailed):
        again.receive(proof)
    mirrored = MasterProof(KEY, A)
    answer, _ = mirrored.receive(SlaveProof(KEY, A).open())
    with pytest.raises(ProofFailed):
        mirrored.receive(answer[:4] + answer[-32:])  # the master's own proof sent back


def test_a_master_says_nothing_and_keeps_little_before_the_proof() -> None:
    master = MasterProof(KEY, A)
    with pytest.raises(ProofFailed, match="before the challenge"):
        master.receive(SlaveProof(KEY, B).open() + bytes(1 << 20))
    answer, rest = MasterProof(KEY, A).receive(SlaveProof(KEY, B).open())
    assert len(answer) == 68 and rest == b""
