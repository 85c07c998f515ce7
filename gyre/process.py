"""How a process treats its memory and its descriptors.

What a cell lets go of goes back to the system, so that the next role finds it (§6). glibc keeps freed blocks for
later, an arena for every few threads: a cell that has served and then trains would hold gigabytes that nothing uses.
Elsewhere than on glibc `share_one_arena` and `give_back` do nothing.
"""

import ctypes
import gc
import os
import resource
from pathlib import Path

_ARENA_MAX = -8
"""`M_ARENA_MAX` of glibc's mallopt."""


def collect_rarely() -> None:
    """Look for cycles of garbage a hundred times less often: events and states are trees, freed as they are let go of.

    A decider that reads its log again spends a fifth of the time on looking for them otherwise.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(70_000, 20, 20)


def share_one_arena() -> None:
    """Let all threads allocate from the same arena; to be called before there are any."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Return every free page to the system; takes milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Memory of this process that lies in RAM, bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def take_descriptors() -> None:
    """As many as this process may have: each connection takes one or two, and what one takes no other lacks then."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
