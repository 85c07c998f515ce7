"""Where a service's sockets listen, and how others reach them: on this machine alone, unless the environment says more.

`GYRE_LISTEN` is the address to listen at (0.0.0.0 or ::, which is
both families: all of this host's), `GYRE_ADDRESS` the name or address that others
know this host by. A process that has a host of its own, such as a container, needs the first; one that has several
networks, or that others look for under a name, both.
"""

import os
import socket

from gyre.addresses import EVERYWHERE, at

LISTEN, ADDRESS = "GYRE_LISTEN", "GYRE_ADDRESS"
_ALONE = "127.0.0.1"


def listening() -> str:
    """The address that sockets listen at."""
    return os.environ.get(LISTEN) or _ALONE


def reached() -> str:
    """The address that others are told; a socket that listens everywhere is reached under this host's own."""
    if told := os.environ.get(ADDRESS):
        return told.strip("[]")
    where = listening()
    return _own(where) if where in EVERYWHERE else where


def url(port: int) -> str:
    """Where others reach what listens at this port."""
    return f"http://{at(reached(), port)}"


def _own(where: str) -> str:
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except socket.gaierror:  # a host of the other family alone
        if where != "::":
            raise
        return str(socket.getaddrinfo(name, None, socket.AF_INET6)[0][4][0])
