"""Which ports the programs of a local cluster get."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys

from batonmq.demo.ports import STRIDE, free_ports

TAKE = """
import json, sys
from batonmq.demo.ports import free_ports
print(json.dumps(free_ports(40)), flush=True)
sys.stdin.read()
"""


def test_processes_side_by_side_get_different_ports_before_anybody_listens() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    try:
        ports = free_ports(40)
        for other in others:
            assert other.stdout is not None
            ports += json.loads(other.stdout.readline())
    finally:
        for other in others:
            other.communicate()
    assert len(ports) == len(set(ports)) == 200
    ports.sort()
    assert all(later - earlier >= STRIDE for earlier, later in itertools.pairwise(ports))


def test_a_port_with_a_listener_about_it_is_passed_over_and_many_are_more_than_one_block() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port + 1)):
        ports = free_ports(150)
    assert port not in ports and len(set(ports)) == 150
    assert port in free_ports(150), "free again"
