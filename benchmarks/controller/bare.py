"""A server that answers whatever a controller is asked at once, and does nothing: no state, no log, no peers.

What it comes to is the most that the load generator and the machine let any controller come to.
`python -m benchmarks.controller.bare HOST:PORT` serves any load until it is killed; what follows the address,
a controller's own arguments, counts for nothing.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

import msgspec
import uvloop

from batonmq.protocol.codes import FLAG_RESPONSE

_OPAQUE = re.compile(rb'"opaque":\s*(\d+)')
_LENGTH = 4


class Bare(asyncio.Protocol):
    """Success for every frame with a JSON header, with the fields that a load goes on from."""

    def __init__(self, address: str) -> None:
        fields = {
            "controllerLeaderAddress": address,
            "isLeader": "true",
            "masterBrokerId": "1",
            "masterEpoch": "1",
            "syncStateSetEpoch": "1",
            "newSyncStateSetEpoch": "1",
        }
        head = {"code": 0, "flag": FLAG_RESPONSE, "language": "JAVA", "version": 477, "extFields": fields}
        self._head = msgspec.json.encode(head)[:-1] + b',"opaque":'
        self._pending = bytearray()
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        answers: list[bytes] = []
        at = 0
        while len(pending) - at >= _LENGTH:
            end = at + _LENGTH + int.from_bytes(pending[at : at + _LENGTH], "big")
            if end > len(pending):
                break
            found = _OPAQUE.search(pending, at, end)
            if found is None:
                raise ValueError("a frame without a JSON header")
            head = b"%b%b}" % (self._head, found[1])
            answers.append((_LENGTH + len(head)).to_bytes(_LENGTH, "big"))
            answers.append(len(head).to_bytes(_LENGTH, "big") + head)
            at = end
        del pending[:at]
        if answers:
            self._transport.write(b"".join(answers))


async def main(address: str) -> None:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Bare(address), host, int(port))
    print("boot success", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
