"""Machines of a cell that start its ranks: processes on this one, which share no temporary folder with anybody."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.trainers.nodes import KEY

SECRET = "a secret"


@contextmanager
def node(
    folder: Path, *command: str, key: str = SECRET, port: int = 0
) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """host:port of a `gyre node`, and its process.

    Args:
        folder: in which its temporary one is made.
        command: what runs beside.
        key: the cell's secret.
        port: 0 for any.
    """
    own = folder / f"machine-{len(list(folder.glob('machine-*')))}"
    own.mkdir()
    words = [sys.executable, "-m", "services.cli", "node", "--port", str(port), *(["--", *command] if command else [])]
    process = subprocess.Popen(
        words, env={**os.environ, KEY: key, "TMPDIR": str(own)}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"at port (\d+)", line)
        assert found, line
        yield f"127.0.0.1:{found[1]}", process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
