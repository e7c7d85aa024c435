"""Signatures: the values that RocketMQ's client computes, what they cover, and that secrets are not shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol.signing import Credentials, signature, signed_by

ALICE = Credentials("alice", "secret12")
TEXTS = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=5)


def test_signatures_are_those_of_rocketmq_s_client() -> None:
    """Computed by AclClientRPCHook of RocketMQ 5.5.0."""
    assert ALICE.sign({"topic": "T"}, b"") == {
        "topic": "T",
        "AccessKey": "alice",
        "Signature": "ZJrTcTVuZmDzip/st3SIMZ5TLZQ=",
    }
    ext = {"topic": "täst", "a": "g", "Zeta": "1", "b": ""}
    signed = Credentials("alice", "s3crét!", "tok").sign(ext, "bodyé".encode())
    assert signed["Signature"] == "7NCuHO8lGNjJp1mHKAizcijzkzQ="
    assert signed["SecurityToken"] == "tok"


def test_a_body_in_parts_is_signed_as_a_whole_one() -> None:
    whole, parts = ALICE.sign({"a": "1"}, b"one two"), ALICE.sign({"a": "1"}, [b"one", memoryview(b" two")])
    assert whole == parts


def test_a_request_that_is_passed_on_is_signed_by_who_passes_it_on() -> None:
    theirs = Credentials("bob", "hidden", "token").sign({"topic": "T"}, b"x")
    assert ALICE.sign(theirs, b"x") == ALICE.sign({"topic": "T"}, b"x")


def test_the_fields_that_are_given_stay_as_they_are() -> None:
    ext = {"topic": "T"}
    ALICE.sign(ext, b"")
    assert ext == {"topic": "T"}


@given(TEXTS, st.binary(max_size=20), st.data())
def test_a_signature_covers_every_value_and_the_body(
    ext: dict[str, str], body: bytes, data: st.DataObject
) -> None:
    signed = ALICE.sign(ext, body)
    assert signed_by("secret12", signed, body)
    assert not signed_by("secret13", signed, body)
    assert not signed_by("secret12", signed, body + b"!")
    changed = data.draw(st.sampled_from([key for key in signed if key != "Signature"]))
    assert not signed_by("secret12", {**signed, changed: signed[changed] + "x"}, body)


@pytest.mark.parametrize("given_signature", [None, "", "é", "x" * 1000])
def test_no_signature_and_a_senseless_one_are_wrong_ones(given_signature: str | None) -> None:
    ext = {"AccessKey": "alice"} if given_signature is None else {"Signature": given_signature}
    assert not signed_by("secret12", ext, b"")
    assert signature("secret12", ext, b"") == signature("secret12", {**ext, "Signature": "other"}, b"")


def test_a_secret_is_not_shown() -> None:
    shown = repr(Credentials("alice", "secret12", "token34"))
    assert "alice" in shown
    assert "secret12" not in shown and "token34" not in shown


@pytest.mark.parametrize("keys", [("", "s"), ("a", ""), (" ", "s"), ("a", " ")])
def test_credentials_without_name_or_secret_are_refused(keys: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="is empty"):
        Credentials(*keys)
