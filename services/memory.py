"""What a cell lets go of goes back to the system, so that the next role finds it (design §6).

glibc keeps freed blocks for later, an arena for every few threads: a cell that has served and then trains would hold
gigabytes that nothing uses. Elsewhere than on glibc both functions do nothing.
"""

import ctypes
import os
from pathlib import Path

_ARENA_MAX = -8
"""`M_ARENA_MAX` of glibc's mallopt."""


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
