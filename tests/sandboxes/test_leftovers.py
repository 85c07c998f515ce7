"""Sandboxes leave nothing behind: however many, however they end, and also when their owner is killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.sandboxes.family import children
from gyre.sandboxes.groups import Groups, places
from gyre.sandboxes.orphans import kill_leftovers
from gyre.sandboxes.port import SandboxError
from services import workspace
from tests.pipes import told
from tests.sandboxes.stand import make, mounts_below, processes_with

KINDS = ("process", "bubblewrap")
TWO_HUNDRED = 200
CHILDREN = """
import os, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, ["python", "-I", "-S", "-c", "import time; time.sleep(900)", sys.argv[1]], os.environ)
if sys.argv[2] == "stays": time.sleep(900)
"""
OWNER = """
import asyncio, os, sys
from pathlib import Path
from tests.sandboxes.stand import make
box, word, pipe = Path(sys.argv[2]), sys.argv[3], sys.argv[4]
script = sys.stdin.read()
async def main():
    stand = make(sys.argv[1])
    reach = "http://127.0.0.1:9" if sys.argv[1] == "bubblewrap" else ""
    running = [asyncio.create_task(stand.sandbox.run(stand.command(box / str(n), script, word, "stays", reach=reach)))
               for n in range(3)]
    while len(list(box.glob("*/ws/up"))) < 3: await asyncio.sleep(0.01)
    Path(pipe).write_text("up")
    await asyncio.gather(*running)
asyncio.run(main())
"""


def groups() -> list[Path]:
    """Control groups of this process's sandboxes."""
    found = set(places(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup")).values())
    return [path for place in found for path in place.glob(f"gyre-*-{os.getpid()}-*")]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("kind", KINDS)
async def test_two_hundred_leave_no_process_mount_group_or_file(tmp_path: Path, kind: str) -> None:
    stand, word, room = make(kind), f"left-{tmp_path}", asyncio.Semaphore(8)
    before, family = descriptors(), children(os.getpid())

    async def one(number: int) -> None:
        """A third ends by itself, a third is stopped, a third is cancelled, each with children of its own."""
        box, stop = tmp_path / str(number), asyncio.Event()
        mode = "ends" if number % 3 == 0 else "stays"
        reach = "http://127.0.0.1:9" if number % 2 else ""
        async with room:
            running = asyncio.create_task(
                stand.sandbox.run(stand.command(box, CHILDREN, word, mode, reach=reach), stop)
            )
            if number % 3 == 1:
                asyncio.get_running_loop().call_later(0.2, stop.set)
            elif number % 3 == 2:
                asyncio.get_running_loop().call_later(0.2, running.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                ended = await running
                assert ended.ending == ("exited" if number % 3 == 0 else "stopped"), ended
            assert sorted(path.name for path in box.iterdir()) in (["home", "tmp", "ws"], ["ws"])
            await asyncio.to_thread(workspace.clear, box)

    await asyncio.gather(*(one(number) for number in range(TWO_HUNDRED)))
    assert processes_with(word) == []
    assert mounts_below(tmp_path) == []
    assert groups() == []
    assert list(tmp_path.iterdir()) == []
    assert descriptors() <= before
    assert set(children(os.getpid())) <= set(family)  # nobody is left unburied either
    await stand.sandbox.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_killed_owner_leaves_is_swept(tmp_path: Path, kind: str) -> None:
    make(kind)
    word, pipe = f"orphan-{tmp_path}", tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"open('up', 'w').close()\n{CHILDREN}"
    arguments = (sys.executable, "-c", OWNER, kind, str(tmp_path / "boxes"), word, str(pipe))
    owner = subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True)
    assert owner.stdin
    owner.stdin.write(script)
    owner.stdin.close()
    assert await told(pipe) == "up"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    Groups()  # what the next sandbox of this machine does first
    for number in range(3):
        kill_leftovers(tmp_path / "boxes" / str(number))
        workspace.vacate(tmp_path / "boxes" / str(number))
    await _gone(word)
    assert mounts_below(tmp_path) == []
    found = set(places(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup")).values())
    assert [path for place in found for path in place.glob(f"gyre-*-{owner.pid}-*")] == []
    assert list((tmp_path / "boxes").iterdir()) == []


async def test_a_command_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    stand = make("bubblewrap")
    command = stand.command(tmp_path / "box", "print(1)", reach="http://127.0.0.1:9")
    (tmp_path / "box/ws").rmdir()
    with pytest.raises(SandboxError, match="cannot be started"):
        await stand.sandbox.run(command)
    assert groups() == []
    assert not (tmp_path / "box/door").exists()


async def _gone(word: str) -> None:
    """Processes that were killed end a moment later."""
    for pid in processes_with(word):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, ended.set)
            try:
                await asyncio.wait_for(ended.wait(), 30)
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
    assert processes_with(word) == []
