"""Files that appear whole or not at all, also where two processes write the same one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def aside(into: Path) -> Iterator[BinaryIO]:
    """A file beside another, under a name of this writer's alone, that takes its place when all goes well.

    Raises:
        OSError: it cannot be written; nothing stays behind.
    """
    handle, name = tempfile.mkstemp(dir=into.parent, prefix=into.name[:16], suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, into)
    finally:
        Path(name).unlink(missing_ok=True)
