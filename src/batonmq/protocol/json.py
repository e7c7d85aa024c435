"""JSON as RocketMQ speaks it.

Java's bodies are fastjson's, which leaves integer map keys bare (``{0:"10.0.0.1:10911"}``) and writes objects
as map keys (``{{"topic":"t",…}:{…}}``). `decode` reads that and standard JSON; `encode` writes standard JSON,
which fastjson reads too, except that maps keyed by an object get fastjson's form: there is no other.
"""

from __future__ import annotations

import re
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

T = TypeVar("T")


class BodyError(MQError, ValueError):
    """A body or file that is not the JSON it should be; crosses the wire as SYSTEM_ERROR."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, remark)


class Body(msgspec.Struct, rename="camel"):
    """A JSON body; fields are camelCase on the wire, unknown ones are ignored."""


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """The JSON of a body or of any value made of bodies, lists and maps."""
    return _encode(_prepare(value) if _has_object_keys(type(value)) else value)


def _prepare(value: Any) -> Any:
    """Replace maps keyed by objects with their text, which msgspec has no way to write."""
    if isinstance(value, msgspec.Struct):
        return {
            wire: _prepare(getattr(value, name))
            for name, wire in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        }
    if isinstance(value, list):
        return [_prepare(item) for item in value]
    if isinstance(value, dict):
        if any(isinstance(key, msgspec.Struct) for key in value):
            members = (_encode(key) + b":" + _encode(_prepare(item)) for key, item in value.items())
            return msgspec.Raw(b"{" + b",".join(members) + b"}")
        return {key: _prepare(item) for key, item in value.items()}
    return value


_NOT_STANDARD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _decode_standard(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(data)  # type: ignore[no-any-return]


def decode(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """Read a body.

    Raises:
        BodyError: the bytes are not JSON of that shape; the message says where.
    """
    object_keys = _has_object_keys(kind)
    if not object_keys:
        try:
            return _decode_standard(data, kind)
        except _NOT_STANDARD:
            pass  # Java's dialect, or not JSON at all: the slow way finds out
    try:
        # fastjson replaces what is no UTF-8, too: some clients send texts of their own encoding.
        plain = _without_nulls(_Reader(bytes(data).decode(errors="replace")).read())
        if object_keys:
            plain = _restore(plain, kind)
        try:
            return msgspec.convert(plain, kind, strict=False, str_keys=not object_keys)
        except msgspec.ValidationError:
            if object_keys:
                raise
        return msgspec.convert(_fitted(plain, kind), kind, strict=False, str_keys=True)
    except BodyError:
        raise
    except (msgspec.MsgspecError, ValueError) as error:
        raise BodyError(f"no valid {getattr(kind, '__name__', kind)}: {error}") from None


MAX_MEMBERS = 1_000_000
"""Of a request's body: some hundred thousand topics in one registration; read in less than half a second."""
MAX_DIALECT_MEMBERS = 20_000
MAX_DIALECT_BYTES = 1 << 20
"""Of a request's body that is not standard JSON, which is read many times as slowly. No request is in Java's
dialect, but for the maps of static topics in a registration."""


def decode_request(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """`decode` for a request's body: one that would keep the reader busy for long is refused.

    Raises:
        BodyError: also for a body of more than `MAX_MEMBERS` members.
    """
    data = bytes(data)
    members = data.count(b",") + data.count(b"{") + data.count(b"[")
    if members > MAX_DIALECT_MEMBERS or len(data) > MAX_DIALECT_BYTES:
        if members > MAX_MEMBERS:
            raise BodyError(f"JSON: {members} members, at most {MAX_MEMBERS} are read")
        try:
            return _decode_standard(data, kind)
        except _NOT_STANDARD as error:
            raise BodyError(f"no valid {kind.__name__}: {error}") from None
    return decode(data, kind)


def _restore(value: Any, kind: Any) -> Any:
    """Turn maps that were read as pairs (`_Reader`) into dicts keyed by structs, where the type says so."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else value
        if _is_struct(arguments[0]):
            return {
                msgspec.convert(_parsed(key), arguments[0], strict=False): _restore(item, arguments[1])
                for key, item in pairs
            }
        return {
            msgspec.convert(key, arguments[0], strict=False): _restore(item, arguments[1])
            for key, item in pairs
        }
    if origin is list and isinstance(value, list):
        return [_restore(item, arguments[0]) for item in value]
    if _is_struct(kind) and isinstance(value, dict):
        types = dict(zip(kind.__struct_encode_fields__, _hints(kind).values(), strict=True))
        return {wire: _restore(item, types.get(wire)) for wire, item in value.items()}
    return value


def _parsed(key: Any) -> Any:
    """Some clients quote the object that is a key."""
    return _Reader(key).read() if isinstance(key, str) else key


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Types of the fields, in their order."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


_object_keys: dict[Any, bool] = {}


def _has_object_keys(kind: Any) -> bool:
    """Somewhere in this type is a map keyed by objects."""
    found = _object_keys.get(kind)
    if found is None:
        if get_origin(kind) is dict and _is_struct(get_args(kind)[0]):
            found = True
        else:
            inner = _hints(kind).values() if _is_struct(kind) else get_args(kind)
            found = any(_has_object_keys(part) for part in inner)
        _object_keys[kind] = found
    return found


def _without_nulls(value: Any) -> Any:
    """fastjson reads a null member as an absent one."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


_ABSENT: Final = object()


def _fitted(value: Any, kind: Any) -> Any:
    """The value as fastjson fits it to a type: members of enums in any case (Go's client writes
    ``Clustering``) or by their position, unknown ones as absent, like ``""`` for a number; numbers as texts.
    `_ABSENT` for an absent value; what does not fit is left as it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kinds = [each for each in arguments if each is not NoneType]
        return _fitted(value, kinds[0]) if len(kinds) == 1 else value
    if origin is Annotated:
        return _fitted(value, arguments[0])
    if isinstance(value, list):
        if origin is not list:
            return value
        items = (_fitted(item, arguments[0]) for item in value)
        return [item for item in items if item is not _ABSENT]
    if isinstance(value, dict):
        if _is_struct(kind):
            types = dict(zip(kind.__struct_encode_fields__, _hints(kind).values(), strict=True))
            members = {wire: _fitted(item, types.get(wire)) for wire, item in value.items()}
        elif origin is dict:
            members = {key: _fitted(item, arguments[1]) for key, item in value.items()}
        else:
            return value
        return {key: item for key, item in members.items() if item is not _ABSENT}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(value, kind)
    if kind in (int, float) and value == "":
        return _ABSENT
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _member(value: Any, kind: type[Enum]) -> Any:
    members = list(kind)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(members):
        return members[value].value
    if isinstance(value, str):
        return next((each.value for each in members if each.value.lower() == value.lower()), _ABSENT)
    return value


_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s,:{}\[\]"]+', re.S)
_CONTROL = re.compile(r"[\x00-\x1f]")
_MAX_DEPTH = 64


class _Reader:
    """A small recursive reader of fastjson's dialect. Maps keyed by objects become lists of pairs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Any:
        value = self._value(0)
        self._skip()
        if self._at != len(self._text):
            raise BodyError(f"JSON: something follows the value at character {self._at}")
        return value

    def _skip(self) -> str:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _expect(self, char: str) -> None:
        if self._skip() != char:
            raise BodyError(f"JSON: expected {char!r} at character {self._at}")
        self._at += 1

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise BodyError(f"JSON: nested deeper than {_MAX_DEPTH}")
        char = self._skip()
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        return self._scalar()

    def _scalar(self) -> Any:
        match = _SCALAR.match(self._text, self._at)
        if match is None:
            raise BodyError(f"JSON: expected a value at character {self._at}")
        self._at = match.end()
        text = match[0]
        if text[0] == '"':  # Go's client writes its stack as it is, with line ends
            text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        try:
            return msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise BodyError(f"JSON: {error} at character {match.start()}") from None

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        if self._skip() == "]":
            self._at += 1
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._ended("]"):
                return items

    def _object(self, depth: int) -> Any:
        self._at += 1
        pairs: list[tuple[Any, Any]] = []
        objects = False
        if self._skip() == "}":
            self._at += 1
            return {}
        while True:
            key = self._value(depth + 1)
            if isinstance(key, dict | list):
                objects = True
            elif not isinstance(key, str):
                key = str(key)
            self._expect(":")
            pairs.append((key, self._value(depth + 1)))
            if self._ended("}"):
                return pairs if objects else dict(pairs)

    def _ended(self, bracket: str) -> bool:
        """Whether the list or map ends here, perhaps after a last comma, as fastjson allows."""
        if self._skip() != bracket:
            self._expect(",")
            if self._skip() != bracket:
                return False
        self._at += 1
        return True
