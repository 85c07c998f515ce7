"""Exit codes of commands and services, and which of them an error ends with."""

import errno

from bus.errors import DiskFull, StreamFull
from gyre.errors import GyreError

EXIT_FAILED = 1
EXIT_REPLACED = 3
"""Somebody else holds this office or this cell: starting it again would only take it back."""
EXIT_FULL = 4
"""The log or the disk takes nothing more: starting again changes nothing before there is room."""
EXIT_HOPELESS = 5
"""Something that only a person can mend (a port that another program holds): starting again changes nothing."""
EXIT_FOUND = 7
"""`gyre doctor` found something wrong with a run; the command itself did what it should."""
EXIT_DIFFERS = 6
"""What was computed again is not what was recorded."""
EXIT_INTERRUPTED = 130
EXIT_UNHEARD = 141
"""Whoever read the output has closed it: what a shell says of a program that SIGPIPE ended."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class RunFull(GyreError):
    """A run has no room to go on: nothing acknowledged is lost, and it resumes once there is room."""


class Hopeless(GyreError):
    """Starting the process again changes nothing: the message says what a person has to do."""


class Interrupted(GyreError):
    """Ended by a signal before it was done: the message says how it is gone on with."""


def is_full(error: BaseException | None) -> bool:
    """Whether it says that a disk, a quota or a stream is full (safetensors tells it by text only)."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return True
    return isinstance(error, StreamFull | DiskFull | RunFull) or "(os error 28)" in str(error)


def code_of(error: BaseException) -> int:
    """With which code a service's process ends for an error that people can mend."""
    return EXIT_HOPELESS if isinstance(error, Hopeless) else EXIT_FULL if is_full(error) else EXIT_FAILED
