"""Ports at which something listens that others must find again after it was away."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_LOW = 32768
_LEAST, _TRIES = 10240, 64


def lasting_port(host: str) -> int:
    """A free port that no outgoing connection is given: it lies below the range from which the system draws those.

    A client that keeps trying a port of that range while nobody listens there may be given that very port for its own
    end, and is then connected to itself: whoever was to listen there again finds the port taken.
    """
    low = _drawn_from()
    for port in random.sample(range(_LEAST, low), _TRIES) if low >= _LEAST + _TRIES else ():
        if is_free(host, port):
            return port
    return any_port(host)


def any_port(host: str) -> int:
    """A free port, as the system gives it: for what is asked for its address each time."""
    with _probe(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with _probe(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _probe(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _drawn_from() -> int:
    """The lowest port that an outgoing connection may be given."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_LOW
