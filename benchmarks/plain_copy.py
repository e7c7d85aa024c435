"""A copy of files that knows nothing of messages, to compare a catch-up with: what any copy costs a machine.

Two processes: one reads the files and sends them over loopback, in pieces as large as those a master sends,
no faster than MB_PER_S; the other writes them. `python -m benchmarks.plain_copy MB MB_PER_S TARGET FILE...`
prints a line when it begins, and one with the bytes and the seconds when it has ended.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PIECE = 256 * 1024


def _pieces(files: Sequence[Path], most: int) -> Iterator[bytes]:
    for path in files:
        with path.open("rb", buffering=0) as file:
            while most > 0 and (piece := file.read(min(PIECE, most))):
                yield piece
                most -= len(piece)


def _receive(server: socket.socket, target: Path) -> None:
    connection, _ = server.accept()
    with target.open("wb", buffering=0) as file:
        buffer = memoryview(bytearray(PIECE))
        while size := connection.recv_into(buffer):
            file.write(buffer[:size])


def main(mb: str, mb_per_s: str, target: str, *files: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            _receive(server, Path(target))
            os._exit(0)
        copied, began = 0, time.monotonic()
        with socket.create_connection(server.getsockname()) as connection:
            print("begins", flush=True)
            for piece in _pieces([Path(name) for name in files], int(float(mb) * 1e6)):
                connection.sendall(piece)
                copied += len(piece)
                time.sleep(max(0.0, copied / (float(mb_per_s) * 1e6) - (time.monotonic() - began)))
        os.waitpid(child, 0)
    print(copied, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
