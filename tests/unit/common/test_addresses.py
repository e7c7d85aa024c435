"""Addresses as text."""

from __future__ import annotations

import pytest

from batonmq.common.addresses import host_and_port, is_address, split_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 , b:2 ; a:1;;", ["a:1", "b:2"]),
        ("n0:127.0.0.1:9877;", ["n0:127.0.0.1:9877"]),
        (" ; ", []),
        ("", []),
    ],
)
def test_a_list_is_split_at_semicolons_and_commas(text: str, expected: list[str]) -> None:
    assert split_addresses(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host:1", ("host", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:9876", ("::1", 9876)),
        ("h:0", ("h", 0)),
    ],
)
def test_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text) == expected
    assert is_address(text) == (expected[1] > 0)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:x", "host:-1", "host:65536", "host:\u0663"]
)
def test_what_is_not_an_address(text: str) -> None:
    assert not is_address(text)
    with pytest.raises(ValueError, match="host:port"):
        host_and_port(text)
