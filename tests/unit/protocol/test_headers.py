"""Every declared header: names on the wire, both ways, and what is said about bad fields."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol import headers
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, NotLeaderError, StaleRouteError, TopicNotExistError, error_for
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.registry import I32, REQUESTS, Header, request

headers.load_all()


def subclasses(cls: type[Any]) -> list[type[Any]]:
    return [sub for direct in cls.__subclasses__() for sub in (direct, *subclasses(direct))]


ALL = sorted(
    (cls for cls in subclasses(Header) if cls.__module__.startswith("batonmq.")), key=lambda cls: cls.__name__
)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_what_is_none_is_not_sent_and_not_missed(cls: type[Header]) -> None:
    value = sample(cls)
    for info in msgspec.structs.fields(cls):
        if info.default is None or type(None) in get_args(info.type):
            setattr(value, info.name, None)
    assert cls.from_ext(value.to_ext()) == value


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_round_trip(cls: type[Header]) -> None:
    value = sample(cls)
    ext = value.to_ext()
    assert all(isinstance(item, str) for item in ext.values())
    assert cls.from_ext(ext) == value
    assert cls.from_ext({**ext, "unknownField": "ignored"}) == value


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_a_missing_field_is_named(cls: type[Header]) -> None:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    ext = sample(cls).to_ext()
    for field in info.fields:
        if field.required:
            less = {key: value for key, value in ext.items() if key != field.encode_name}
            with pytest.raises(MQError, match=f"<{field.encode_name}> is null") as caught:
                cls.from_ext(less)
            assert caught.value.code == ResponseCode.SYSTEM_ERROR


def sample(cls: type[Header]) -> Header:
    """A value with every field set."""
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return cls(**{field.name: value_of(field.type) for field in info.fields})


def value_of(kind: Any) -> Any:
    if isinstance(kind, msgspec.inspect.UnionType):
        return value_of(next(part for part in kind.types if not isinstance(part, msgspec.inspect.NoneType)))
    if isinstance(kind, msgspec.inspect.Metadata):
        return value_of(kind.type)
    return {
        msgspec.inspect.StrType: "some text",
        msgspec.inspect.IntType: 42,
        msgspec.inspect.BoolType: True,
        msgspec.inspect.FloatType: 1.5,
    }[type(kind)]


def test_every_request_has_its_own_code_and_a_docstring() -> None:
    assert len(REQUESTS) > 70
    for code, cls in REQUESTS.items():
        assert cls.code == code
        assert inspect.getdoc(cls) and "``" + cls.__name__ not in (cls.__doc__ or "")
        assert cls.response is None or issubclass(cls.response, Header)


def test_one_code_is_declared_once() -> None:
    with pytest.raises(TypeError, match="PULL_MESSAGE is declared by PullMessage and by Other"):

        @request(RequestCode.PULL_MESSAGE)
        class Other(Header):
            pass


def test_short_names_of_send_message_v2() -> None:
    names = dict(zip(SendMessageV2.__struct_fields__, SendMessageV2.__struct_encode_fields__, strict=True))
    assert "".join(names.values()) == "abcdefghijklmn"
    assert (names["topic"], names["queue_id"], names["properties"]) == ("b", "e", "i")


PULL = PullMessage("g", "t", 0, 5, 32, 2, 0, 15000, 1).to_ext()

BAD = [
    ("queueId", "x", "'x'"),
    ("queueId", "", "''"),
    ("queueId", "1.5", "'1.5'"),
    ("queueId", str(2**31), str(2**31)),
    ("queueOffset", str(2**63), str(2**63)),
    ("queueOffset", "9" * 400, "999"),
]


@pytest.mark.parametrize(("key", "value", "named"), BAD)
def test_a_bad_value_is_named(key: str, value: str, named: str) -> None:
    with pytest.raises(MQError, match=f"<{key}>.*{named}"):
        PullMessage.from_ext({**PULL, key: value})


class Java(Header):
    """Java's ways with values."""

    count: I32 | None = None
    flag: bool | None = None


JAVA = [
    ({}, Java(None, None)),
    ({"count": "null"}, Java(None, None)),
    ({"count": "-7", "flag": "true"}, Java(-7, True)),
    ({"flag": "TRUE"}, Java(None, True)),
    ({"flag": "false"}, Java(None, False)),
    ({"flag": "1"}, Java(None, False)),
    ({"flag": "yes"}, Java(None, False)),
    ({"flag": ""}, Java(None, False)),
]


@pytest.mark.parametrize(("ext", "expected"), JAVA)
def test_values_as_java_writes_them(ext: dict[str, str], expected: Java) -> None:
    assert Java.from_ext(ext) == expected


def test_booleans_are_written_as_java_writes_them() -> None:
    assert Java(1, True).to_ext() == {"count": "1", "flag": "true"}
    assert Java(None, False).to_ext() == {"flag": "false"}


@given(st.dictionaries(st.sampled_from(list(PULL)), st.text(max_size=12)))
def test_any_fields_either_fit_or_raise(ext: dict[str, str]) -> None:
    try:
        PullMessage.from_ext({**PULL, **ext})
    except MQError as error:
        assert error.code == ResponseCode.SYSTEM_ERROR


ERRORS = [
    (ResponseCode.TOPIC_NOT_EXIST, TopicNotExistError, True, True),
    (ResponseCode.SERVICE_NOT_AVAILABLE, StaleRouteError, True, True),
    (ResponseCode.CONTROLLER_NOT_LEADER, NotLeaderError, True, True),
    (ResponseCode.SYSTEM_BUSY, MQError, True, False),
    (ResponseCode.MESSAGE_ILLEGAL, MQError, False, False),
    (ResponseCode.NO_PERMISSION, MQError, False, False),
    (12345, MQError, False, False),
]


@pytest.mark.parametrize(("code", "kind", "retryable", "stale"), ERRORS)
def test_a_code_becomes_its_error(code: int, kind: type[MQError], retryable: bool, stale: bool) -> None:
    error = error_for(code, "why", {"a": "b"})
    assert isinstance(error, kind)
    assert (error.code, error.remark, error.ext) == (code, "why", {"a": "b"})
    assert (error.retryable, error.stale_route) == (retryable, stale)
    assert str(code) in str(error) and "why" in str(error)
