"""Files that only their owner may read: passwords stand in them."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file by one with mode 0600; whoever reads it sees the old text or the new one. Raises `OSError`."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600, exist_ok=False)
    partial.write_text(text)
    partial.replace(path)
