"""Where a service's sockets listen, and how others reach them: on this machine alone, unless the environment says more.

`GYRE_LISTEN` is the address to listen at (0.0.0.0: all of this host's), `GYRE_ADDRESS` the name or address that others
know this host by. A process that has a host of its own, such as a container, needs the first; one that has several
networks, or that others look for under a name, both.
"""

import os
import socket

LISTEN, ADDRESS = "GYRE_LISTEN", "GYRE_ADDRESS"
_ALONE, _EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104 - only where the environment asks for it


def listening() -> str:
    """The address that sockets listen at."""
    return os.environ.get(LISTEN) or _ALONE


def reached() -> str:
    """The address that others are told; a socket that listens everywhere is reached under this host's own."""
    if told := os.environ.get(ADDRESS):
        return told
    where = listening()
    return socket.gethostbyname(socket.gethostname()) if where == _EVERYWHERE else where
