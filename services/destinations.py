"""Where a command writes what it was asked for: whether it can is found out before the work, not after it."""

import os
from pathlib import Path

from gyre.errors import GyreError


class NoDestination(GyreError):
    """Nothing can be written there; one line with the way out."""


def check_file(path: Path, *, anew: bool = False) -> None:
    """Whether a file can be written here, in a folder that is there: none is made. Raises `NoDestination`.

    `anew`: by another that takes its place, so that its folder counts.
    """
    if path.is_dir():
        raise NoDestination(f"{path}: is a folder; name a file in it")
    if not anew and path.exists() and os.access(path, os.W_OK):
        return  # a pipe or a device, or a file in a folder of others
    folder = path.absolute().parent
    if not folder.is_dir():
        raise NoDestination(f"{path}: no such folder; make it, or write elsewhere")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NoDestination(f"{path}: nothing may be written in {folder}; write elsewhere")
