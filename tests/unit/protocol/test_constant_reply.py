"""An answer that differs in its opaque only has the bytes of the general encoder."""

from __future__ import annotations

import pytest

from batonmq.protocol.codes import FLAG_RESPONSE
from batonmq.protocol.constant_reply import ConstantReply
from batonmq.protocol.frame import FrameReader, encode_head


@pytest.mark.parametrize("remark", ["Heart beat success", 'a "quoted" one, größer', "opaque 1234567 "])
@pytest.mark.parametrize("code", [0, 1, 2012])
@pytest.mark.parametrize("binary", [True, False])
def test_the_bytes_are_those_of_the_general_encoder(code: int, remark: str, *, binary: bool) -> None:
    reply = ConstantReply(code, remark)
    for opaque in (0, 1, -1, 1_234_567_890, 0x7FFF_FFFF, -0x8000_0000):
        frame = reply.frame(opaque, binary=binary)
        assert frame == encode_head(code, opaque, FLAG_RESPONSE, binary=binary, remark=remark)
        (command,) = FrameReader(1 << 20).feed(frame)
        assert (command.code, command.opaque, command.remark) == (code, opaque, remark)
