"""Freed memory that the allocator keeps is measured in a process of its own, since this one's is everybody's."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import threading
from pathlib import Path
from gyre.process import give_back, share_one_arena


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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library is not glibc")
def test_a_cell_that_changes_its_role_gives_the_memory_of_the_former_one_back(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.services.memory_program", str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    found = json.loads(ended.stdout)
    resident = {(transition, phase): size for transition, phase, size in found["phases"]}
    size = found["size"]
    assert resident["t1", "handoff"] - resident["t1", "offload"] > 0.9 * size  # the engine's parameters
    assert resident["t1", "restore"] - resident["t1", "offload"] > 0.9 * size  # the trainer's
    assert resident["t1", "restore"] - resident["t2", "offload"] > 0.9 * size
    assert resident["t2", "restore"] - resident["t2", "offload"] > 0.9 * size
    assert resident["t2", "admit"] - resident["t1", "handoff"] < 0.2 * size  # nothing stays behind
