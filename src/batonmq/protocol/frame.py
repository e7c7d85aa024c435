"""Remoting frames: bytes to `Command` and back, for both header serialisations.

A frame is ``length(4) | serialisation(1) header length(3) | header | body``; ``length`` is of what follows.
A header is JSON (serialisation 0) or RocketMQ's own binary form (1); a peer is answered in the form it used.
Nothing here does I/O. Source: `RemotingCommand` and `RocketMQSerializable` of Apache RocketMQ 5.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from batonmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, LanguageCode, RequestCode, ResponseCode
from batonmq.protocol.errors import FrameError, MQError
from batonmq.protocol.json_header import JsonHeader, read_loosely
from batonmq.protocol.versions import PROTOCOL_VERSION

MAX_FRAME_LENGTH: Final = 16 * 1024 * 1024
"""Bytes of a whole frame, its length field included; Netty's limit in RocketMQ."""

SHORT_BODY: Final = 64 * 1024
"""Bytes of a body that is cheap to copy. A longer one is most of what was read with it."""
_PYTHON = int(LanguageCode.PYTHON)
_OTHER = int(LanguageCode.OTHER)
BINARY_BIT: Final = 1 << 24
"""Of the word that holds the header's length: the header is in the binary form."""
BINARY_MIN_HEADER: Final = 21
"""Bytes of a binary header without remark and fields."""
BINARY_HEAD = struct.Struct(">IIhbhiiI")
"""How a frame with a binary header begins: frame length, serialisation and header length, code, language,
version, opaque, flag, remark length. The remark, the length of the fields and the fields follow."""
LENGTHS = struct.Struct(">II")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_unpack_binary_head = BINARY_HEAD.unpack_from
_unpack_lengths = LENGTHS.unpack_from
_unpack_u32 = _U32.unpack_from

_CUT_CODES = {code & 0xFFFF: int(code) for code in RequestCode if code > 0xFFFF}
"""The lower 16 bits of request codes -> the codes. RocketMQ's clients write only these bits into a binary
header (`RocketMQSerializable`), so its own brokers refuse their pops as unknown requests."""

_LANGUAGE_TEXTS = {code.value: code.name.encode() for code in LanguageCode}
_LANGUAGE_CODES = {code.name: code.value for code in LanguageCode}


class Command:
    """One remoting frame.

    ``body`` of a received frame is a view of the bytes it arrived in (no copy); ``b""`` when there is none.
    ``ext`` of a received frame is decoded on first use; ``raw_ext`` is what it will be decoded from, in the
    form that ``binary`` says.
    """

    __slots__ = (
        "_ext",
        "binary",
        "body",
        "code",
        "flag",
        "language",
        "opaque",
        "raw_ext",
        "remark",
        "version",
    )

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        flag: int = 0,
        opaque: int = 0,
        remark: str | None = None,
        language: int = _PYTHON,
        version: int = PROTOCOL_VERSION,
        binary: bool = False,
        raw_ext: bytes | msgspec.Raw = b"",
    ) -> None:
        self.code = code
        self._ext = ext
        self.body = body
        self.flag = flag
        self.opaque = opaque
        self.remark = remark
        self.language = language
        self.version = version
        self.binary = binary
        self.raw_ext = raw_ext

    @property
    def ext(self) -> dict[str, str]:
        """The header's fields. Raises `MQError` when the peer's fields are malformed."""
        if self._ext is None:
            raw = self.raw_ext
            self._ext = decode_ext(raw) if isinstance(raw, bytes) else _decode_json_ext(raw)
        return self._ext

    @property
    def json_ext(self) -> msgspec.Raw | None:
        """The fields as they arrived, a JSON object of texts in practice; None of a frame that is no JSON."""
        raw = self.raw_ext
        return raw if isinstance(raw, msgspec.Raw) else None

    @property
    def size(self) -> int:
        """Bytes that a received command keeps."""
        remark = self.remark
        return len(self.raw_ext) + len(self.body) + (len(remark) if remark else 0)

    def detach(self) -> None:
        """Keep a copy of the fields, and of a short body, instead of all the bytes that the frame arrived in:
        those of one read are of many frames. For a received command that is kept for long."""
        raw, body = self.raw_ext, self.body
        if isinstance(raw, msgspec.Raw):
            self.raw_ext = raw.copy()
        if isinstance(body, memoryview) and len(body) < SHORT_BODY:
            self.body = bytes(body)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<{kind} code={self.code} opaque={self.opaque} remark={self.remark!r} body={len(self.body)} B>"
        )


class _Received(Command):
    """A command whose fields the parser sets one by one: `Command`'s ten keywords cost a third of the parse.
    (`Command.__new__` alone would do as well, but not once compiled: mypyc has it call `__init__`.)"""

    __slots__ = ()

    def __init__(self) -> None:
        pass


def decode_ext(raw: bytes) -> dict[str, str]:
    """Fields of a binary header: repeated ``key length(2) key value length(4) value``.

    Raises:
        MQError: SYSTEM_ERROR when a length reaches beyond the header or the text is not UTF-8.
    """
    ext: dict[str, str] = {}
    position, end = 0, len(raw)
    try:
        while position < end:
            key_end = position + 2 + (raw[position] << 8 | raw[position + 1])
            value_start = key_end + 4
            value_end = value_start + _unpack_u32(raw, key_end)[0]
            if value_end > end:
                raise MQError(ResponseCode.SYSTEM_ERROR, "header field reaches beyond the header")
            ext[raw[position + 2 : key_end].decode()] = raw[value_start:value_end].decode()
            position = value_end
    except (IndexError, struct.error):
        raise MQError(ResponseCode.SYSTEM_ERROR, "header field reaches beyond the header") from None
    except UnicodeDecodeError:
        raise MQError(ResponseCode.SYSTEM_ERROR, "header field is not UTF-8") from None
    return ext


def encode_ext(ext: Mapping[str, str]) -> bytes:
    """The binary form of header fields; what `decode_ext` reads."""
    parts: list[bytes] = []
    for key, value in ext.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        parts += (_U16.pack(len(key_bytes)), key_bytes, _U32.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)


def encode_head(
    code: int,
    opaque: int,
    flag: int,
    *,
    binary: bool,
    body_length: int = 0,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    language: int = _PYTHON,
    version: int = PROTOCOL_VERSION,
) -> bytes:
    """A frame up to its body, which the caller sends after it (``body_length`` bytes).

    The binary form has 16 bits for the code; a greater one is sent as JSON, which every peer reads.
    """
    if binary and -0x8000 <= code <= 0x7FFF:
        raw = encode_ext(ext) if ext else b""
        note = remark.encode() if remark else b""
        header_length = BINARY_MIN_HEADER + len(note) + len(raw)
        return b"".join(
            (
                BINARY_HEAD.pack(
                    4 + header_length + body_length,
                    BINARY_BIT | header_length,
                    code,
                    language,
                    version,
                    opaque,
                    flag,
                    len(note),
                ),
                note,
                _U32.pack(len(raw)),
                raw,
            )
        )
    # Formatted, not encoded as a map: that took twice as long.
    encoded = (
        b'{"code":%d,"flag":%d,"language":"%b","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d'
        % (
            code,
            flag,
            _LANGUAGE_TEXTS.get(language, b"OTHER"),
            opaque,
            version,
        )
    )
    if ext:
        encoded += b',"extFields":' + _encode_json(ext)
    if remark:
        encoded += b',"remark":' + _encode_json(remark)
    encoded += b"}"
    return LENGTHS.pack(4 + len(encoded) + body_length, len(encoded)) + encoded


def encode(command: Command) -> bytes:
    """The whole frame of a command."""
    body = command.body
    head = encode_head(
        command.code,
        command.opaque,
        command.flag,
        binary=command.binary,
        body_length=len(body),
        ext=command.ext,
        remark=command.remark,
        language=command.language,
        version=command.version,
    )
    return b"".join((head, body)) if body else head


_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(JsonHeader).decode
_decode_json_fields = msgspec.json.Decoder(dict[str, Any] | None).decode
_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1


def _text(value: object) -> str:
    """A header field's value as Java would have written it; some clients send bare numbers and booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _decode_json_ext(raw: msgspec.Raw) -> dict[str, str]:
    try:
        fields = _decode_json_fields(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"header fields: {error}") from None
    return {key: _text(value) for key, value in (fields or {}).items() if value is not None}


def _command_from_json(header: memoryview, body: bytes | memoryview) -> Command:
    try:
        parsed = _decode_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            parsed = read_loosely(bytes(header))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise FrameError(f"JSON header: {error}") from None
    code, flag, opaque = parsed.code, parsed.flag, parsed.opaque
    if not (
        _INT32_MIN <= code <= _INT32_MAX
        and _INT32_MIN <= flag <= _INT32_MAX
        and _INT32_MIN <= opaque <= _INT32_MAX
    ):
        raise FrameError("JSON header: code, flag or opaque does not fit 32 bits")
    language = parsed.language
    command = _Received()
    command.code = code
    command.flag = flag
    command.opaque = opaque
    command.language = language if isinstance(language, int) else _LANGUAGE_CODES.get(language, _OTHER)
    command.version = parsed.version
    command.remark = parsed.remark
    command._ext = None
    command.raw_ext = parsed.extFields
    command.body = body
    command.binary = False
    return command


class FrameReader:
    """Cuts a byte stream into frames.

    Feed it what the socket gave, in order; it keeps at most one unfinished frame. ``data`` must not be
    changed afterwards, because bodies are views of it.
    """

    __slots__ = ("_chunks", "_held", "_max_length", "_needed")

    def __init__(self, max_length: int = MAX_FRAME_LENGTH) -> None:
        self._max_length = max_length
        self._chunks: list[bytes | memoryview] = []
        self._held = 0
        self._needed = 0

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame kept so far."""
        return self._held

    def allow(self, max_length: int) -> None:
        """Frames may be so long from now on."""
        self._max_length = max_length

    def feed(self, data: bytes) -> list[Command]:
        """All frames that are complete with ``data``.

        Raises:
            FrameError: the stream holds something that is no frame; the reader is of no use afterwards.
        """
        if self._held:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            # One join when the frame is complete: joining on every read is quadratic for large frames.
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._held = 0
        commands: list[Command] = []
        view = memoryview(data)
        position, end = 0, len(data)
        limit = self._max_length
        while end - position >= 8:
            length, marked = _unpack_lengths(data, position)
            header_length = marked & 0xFFFFFF
            if length + 4 > limit:
                raise FrameError(f"frame of {length + 4} bytes is longer than the limit of {limit}")
            if length < 4 or header_length > length - 4:
                raise FrameError(f"header of {header_length} bytes in a frame of {length}")
            frame_end = position + 4 + length
            if frame_end > end:
                break
            header_start = position + 8
            header_end = header_start + header_length
            body: bytes | memoryview = view[header_end:frame_end] if frame_end > header_end else b""
            kind = marked >> 24
            if kind == 1:
                if header_length < BINARY_MIN_HEADER:
                    raise FrameError(f"binary header of {header_length} bytes")
                _, _, code, language, version, opaque, flag, note_length = _unpack_binary_head(data, position)
                note_end = header_start + 17 + note_length
                if note_end + 4 > header_end:
                    raise FrameError(f"remark of {note_length} bytes in a header of {header_length}")
                ext_end = note_end + 4 + _unpack_u32(data, note_end)[0]
                if ext_end > header_end:
                    raise FrameError("fields reach beyond the header")
                command = _Received()
                command.code = _CUT_CODES[code] if code in _CUT_CODES and not flag & FLAG_RESPONSE else code
                command.flag = flag
                command.opaque = opaque
                command.language = language
                command.version = version
                command.remark = (
                    None if not note_length else data[header_start + 17 : note_end].decode(errors="replace")
                )
                command._ext = None
                command.raw_ext = data[note_end + 4 : ext_end]
                command.body = body
                command.binary = True
                commands.append(command)
            elif kind == 0:
                commands.append(_command_from_json(view[header_start:header_end], body))
            else:
                raise FrameError(f"unknown header serialisation {kind}")
            position = frame_end
        if position < end:
            rest = data[position:] if position else data
            self._chunks.append(rest)
            self._held = end - position
            self._needed = 8
            if self._held >= 4:
                length = _unpack_u32(data, position)[0]
                if not 4 <= length <= limit - 4:
                    raise FrameError(f"frame of {length + 4} bytes; the limit is {limit}")
                self._needed = max(8, 4 + length)
        return commands
