"""Network addresses as text: ``host:port``, ``[v6]:port``, and lists of them."""

from __future__ import annotations

import socket
from collections.abc import Iterable

_FORM = "not an address of the form host:port"


def split_addresses(text: str) -> list[str]:
    """``host:port;host:port`` (commas separate too) as a list, in order, without blanks and repetitions."""
    return list(dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip()))


def host_and_port(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as host and port, 0 to 65535. Raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(_FORM)
    return host.strip("[]"), int(port)


def name_server_addresses(namesrv: str | Iterable[str]) -> list[str]:
    """``"a:9876;b:9876"``, or a list of addresses, as a list without repetitions.

    Raises:
        ValueError: there is no address, or one is not ``host:port``.
    """
    addresses = split_addresses(namesrv if isinstance(namesrv, str) else ";".join(namesrv))
    if not addresses:
        raise ValueError("no name server address was given (expected host:port, several joined by ';')")
    for address in addresses:
        try:
            host_and_port(address)
        except ValueError:
            raise ValueError(
                f"name server address {address!r}: expected host:port, such as 127.0.0.1:9876"
            ) from None
    return addresses


def is_address(text: str) -> bool:
    """Whether something can be reached at this address: ``host:port`` with a port from 1 on."""
    try:
        return host_and_port(text)[1] > 0
    except ValueError:
        return False


def local_ip() -> str:
    """The address that this machine uses towards others; 127.0.0.1 without a network. Sends nothing.

    The one socket that no event loop opens: it only asks the routing table. Under the simulator, programs
    must be given their address, or they find the real machine's.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: never assigned, always routed to the outside
        except OSError:
            return "127.0.0.1"
        ip: str = probe.getsockname()[0]
        return ip
