"""Freed memory that the allocator keeps is measured in a process of its own, since this one's is everybody's."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import threading
from pathlib import Path
from services.memory import give_back, share_one_arena


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def work(kept):
    blocks = [bytearray(100_000) for _ in range(1000)]
    kept += blocks[::100]


share_one_arena()
kept = []
for _ in range(3):
    thread = threading.Thread(target=work, args=(kept,))
    thread.start()
    thread.join()
before = resident()
give_back()
print(before, resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library is not glibc")
def test_what_threads_freed_around_what_lives_goes_back_to_the_system() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    before, after = map(int, ended.stdout.split())
    assert before - after > 60
