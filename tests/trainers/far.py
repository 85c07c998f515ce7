"""Machines of a cell that start its ranks: processes on this one, which share no temporary folder with anybody."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.addresses import at
from gyre.trainers.nodes import KEY, LISTEN

SECRET = "a secret"


def has_ipv6() -> bool:
    """Whether something can listen at ::1 of this machine."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@contextmanager
def node(
    folder: Path, *command: str, key: str = SECRET, port: int = 0, address: str = "127.0.0.1"
) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """host:port of a `gyre node`, and its process.

    Args:
        folder: in which its temporary one is made.
        command: what runs beside.
        key: the cell's secret.
        port: 0 for any.
        address: where it listens.
    """
    own = folder / f"machine-{len(list(folder.glob('machine-*')))}"
    own.mkdir()
    words = [sys.executable, "-m", "services.cli", "node", "--port", str(port), *(["--", *command] if command else [])]
    process = subprocess.Popen(
        words, env={**os.environ, KEY: key, LISTEN: address, "TMPDIR": str(own)}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"at port (\d+)", line)
        assert found, line
        yield at(address, int(found[1])), process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
