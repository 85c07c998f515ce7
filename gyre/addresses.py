"""Addresses at which sockets of this machine listen, of either family of the internet protocol."""

import socket

EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - what it means to be told so


def at(address: str, port: int) -> str:
    """Both, as they stand in a URL."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def listener(address: str, port: int = 0) -> socket.socket:
    """What listens there: at `::` to callers of either family, where the machine has both. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((address, port), family=family, dualstack_ipv6=both)
