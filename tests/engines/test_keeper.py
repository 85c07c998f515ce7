"""What a keeper runs ends with its owner, however that one ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gyre.engines.sglang import keeper

TREE = "import os, time; os.fork(); os.write(1, f'{os.getpid()}\\n'.encode()); time.sleep(600)"


@pytest.mark.parametrize("end", ["input", signal.SIGTERM, signal.SIGINT, signal.SIGHUP, "itself"])
def test_the_whole_tree_ends(end: str | signal.Signals) -> None:
    words = [sys.executable, "-c", "raise SystemExit(3)" if end == "itself" else TREE]
    kept = subprocess.Popen(
        [sys.executable, keeper.__file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert kept.stdin is not None
    assert kept.stdout is not None
    pids = [] if end == "itself" else [int(kept.stdout.readline()) for _ in range(2)]
    if end == "input":
        kept.stdin.close()
    elif isinstance(end, signal.Signals):
        kept.send_signal(end)
    assert kept.wait(30) == (3 if end == "itself" else 128 + signal.SIGKILL)
    until = time.monotonic() + 30
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < until
    kept.stdin.close()
    kept.stdout.close()


def alive(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has looked at yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
