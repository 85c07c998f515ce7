import asyncio
import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.sandboxes.orphans import Orphanage, kill_leftovers, marked
from gyre.sandboxes.port import OUTPUT_BYTES, Command, Ended, Limits, SandboxError
from gyre.sandboxes.process import ProcessSandbox
from tests.pipes import told

SPAWN = """
import os, subprocess, sys
for how in ({}, {"start_new_session": True}):
    subprocess.Popen(["sleep", "300"], **how)
"""


@pytest.fixture(scope="module")
def sandbox() -> ProcessSandbox:
    return ProcessSandbox(Limits(disk_bytes=4 << 20, file_bytes=8 << 20, look_seconds=0.1))


def command(box: Path, *arguments: str, seconds: float = 20.0, grace: float = 0.2, **environment: str) -> Command:
    (box / "ws").mkdir(parents=True, exist_ok=True)
    return Command(arguments, box / "ws", box, environment, seconds, grace)


def await_end(pid: int) -> None:
    """Wait until a process, whoever's child it is, has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            assert select.select([descriptor], [], [], 30)[0]
        finally:
            os.close(descriptor)


def alive_in(box: Path) -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and marked(int(path.name), box)]


async def test_a_command_runs_in_its_folder_with_private_places_and_little_else(
    tmp_path: Path, sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the host")
    ended = await sandbox.run(command(tmp_path, "/bin/sh", "-c", "pwd; env; exit 3", TOLD="yes"))
    lines = ended.output.decode().splitlines()
    assert (ended.ending, ended.exit_code, lines[0]) == ("exited", 3, str(tmp_path / "ws"))
    assert f"HOME={tmp_path}/home" in lines
    assert f"TMPDIR={tmp_path}/tmp" in lines
    assert "TOLD=yes" in lines
    assert "of the host" not in ended.output.decode()


async def test_a_command_that_is_not_there_ends_with_a_reason(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    ended = await sandbox.run(command(tmp_path, "/no/such/program"))
    assert ended.exit_code == 127
    assert "/no/such/program" in ended.last_line


async def test_a_command_that_cannot_be_started_says_so(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    wanted = command(tmp_path, "true")
    (tmp_path / "ws").rmdir()
    with pytest.raises(SandboxError, match="command 'true': cannot be started"):
        await sandbox.run(wanted)


@pytest.mark.parametrize("lacking", ["pipe", "pidfd_open"])
async def test_where_no_descriptor_is_left_nothing_is_started_or_left(
    tmp_path: Path, sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, lacking, none_left)
    with pytest.raises(SandboxError, match=r"command 'sleep': cannot be started: .*Too many open files"):
        await sandbox.run(command(tmp_path, "sleep", "300"))
    assert alive_in(tmp_path) == []


async def test_the_end_of_a_large_pipe_is_heard(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    program = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
os.write(1, b"x" * 500_000 + b"\\nthe end\\n")
"""
    ended = await sandbox.run(command(tmp_path, sys.executable, "-c", program))
    assert (ended.exit_code, ended.last_line) == (0, "the end")


async def test_a_flood_keeps_its_last_64_kib_and_leaves_the_processor_to_others(
    tmp_path: Path, sandbox: ProcessSandbox
) -> None:
    flood = asyncio.create_task(sandbox.run(command(tmp_path, "yes", "a flood", seconds=0.5)))
    turns = 0
    while not flood.done():
        await asyncio.sleep(0.005)
        turns += 1
    ended = await flood
    assert ended.ending == "timeout"
    assert len(ended.output) == OUTPUT_BYTES
    assert ended.last_line.startswith("a")
    assert turns > 10


async def asked_to_end(sandbox: ProcessSandbox, box: Path, script: str, grace: float) -> Ended:
    """How a command ends that is asked to once it has said "up" to ../up."""
    stop = asyncio.Event()
    os.mkfifo(box / "up")
    running = asyncio.create_task(sandbox.run(command(box, "/bin/sh", "-c", script, grace=grace), stop))
    await told(box / "up")
    stop.set()
    return await running


async def test_what_will_not_end_is_killed_after_its_grace(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    ended = await asked_to_end(sandbox, tmp_path, "trap '' TERM; echo up >../up; while :; do sleep 1; done", 0.2)
    assert (ended.ending, ended.exit_code) == ("stopped", -signal.SIGKILL)
    assert ended.reason == "ended because its cancellation was asked for"
    assert alive_in(tmp_path) == []


async def test_a_deadline_ends_a_command(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    ended = await sandbox.run(command(tmp_path, "sleep", "300", seconds=0.3))
    assert (ended.ending, ended.exit_code, ended.reason) == (
        "timeout",
        -signal.SIGTERM,
        "ended at its deadline of 0.3 s",
    )


async def test_a_command_may_clean_up_in_its_grace(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    script = "trap 'echo cleaned; exit 7' TERM; echo up >../up; while :; do sleep 0.05; done"
    ended = await asked_to_end(sandbox, tmp_path, script, 10.0)
    assert (ended.ending, ended.exit_code, ended.last_line) == ("stopped", 7, "cleaned")


async def test_children_that_outlive_a_command_are_killed_even_in_sessions_of_their_own(
    tmp_path: Path, sandbox: ProcessSandbox
) -> None:
    ended = await sandbox.run(command(tmp_path, sys.executable, "-c", SPAWN))
    assert (ended.ending, ended.exit_code) == ("exited", 0)
    assert alive_in(tmp_path) == []


async def test_the_orphans_of_one_command_are_not_those_of_another(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    for name in ("up", "on"):
        os.mkfifo(tmp_path / name)
    script = f"(echo up >{tmp_path}/up; cat {tmp_path}/on >late) & wait"
    slow = asyncio.create_task(sandbox.run(command(tmp_path / "a", "/bin/sh", "-c", script)))
    assert await told(tmp_path / "up") == "up\n"
    for _ in range(3):
        await sandbox.run(command(tmp_path / "b", sys.executable, "-c", SPAWN))
    await asyncio.to_thread((tmp_path / "on").write_text, "late\n")
    await slow
    assert (tmp_path / "a/ws/late").read_text() == "late\n"


async def test_a_stop_ends_a_command(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    stop = asyncio.Event()
    os.mkfifo(tmp_path / "up")
    script = f"echo up >{tmp_path}/up; exec sleep 300"
    running = asyncio.create_task(sandbox.run(command(tmp_path, "/bin/sh", "-c", script), stop))
    await told(tmp_path / "up")
    stop.set()
    ended = await running
    assert (ended.ending, ended.exit_code) == ("stopped", -signal.SIGTERM)


async def test_cancelling_the_call_kills_the_command(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    os.mkfifo(tmp_path / "up")
    script = f"setsid sleep 300 & sleep 300 & echo up >{tmp_path}/up; wait"
    running = asyncio.create_task(sandbox.run(command(tmp_path, "/bin/sh", "-c", script)))
    await told(tmp_path / "up")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive_in(tmp_path) == []


async def test_no_file_grows_beyond_its_limit(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    ended = await sandbox.run(command(tmp_path, "/bin/sh", "-c", "head -c 20000000 /dev/zero >big"))
    assert ended.exit_code != 0
    assert (tmp_path / "ws/big").stat().st_size <= 8 << 20


async def test_a_process_starts_commands_under_less_memory_than_it_has_itself(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(Limits(memory_bytes=32 << 20))
    held = bytearray(48 << 20)
    large = {f"LARGE_{place}": "x" * 120_000 for place in range(15)}  # starting it takes memory
    script = "while [ $(ulimit -d) = unlimited ]; do :; done; echo ${#LARGE_14}; ulimit -d"  # it is given once it runs
    for _ in range(5):
        ended = await sandbox.run(command(tmp_path, "/bin/sh", "-c", script, **large))
        assert (ended.ending, ended.output) == ("exited", b"120000\n32768\n"), len(held)


async def test_a_box_that_fills_up_ends_its_command(tmp_path: Path, sandbox: ProcessSandbox) -> None:
    script = "for n in 1 2 3; do head -c 2000000 /dev/zero >$n; done; sleep 300"
    ended = await sandbox.run(command(tmp_path, "/bin/sh", "-c", script))
    assert ended.ending == "disk"


async def test_a_command_dies_with_its_sandbox_and_the_rest_is_found_by_its_box(tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from gyre.sandboxes.port import Command
from gyre.sandboxes.process import ProcessSandbox
box = Path({str(tmp_path)!r})
script = "setsid sleep 300 & echo $! >child; sleep 300"
asyncio.run(ProcessSandbox().run(Command(("/bin/sh", "-c", script), box, box, {{}}, 60)))
"""
    os.mkfifo(tmp_path / "child")
    parent = subprocess.Popen([sys.executable, "-c", program])
    child = int(await told(tmp_path / "child"))
    parent.kill()
    parent.wait()
    assert kill_leftovers(tmp_path) >= 1
    for pid in (child, *alive_in(tmp_path)):
        await_end(pid)
    assert alive_in(tmp_path) == []


def test_a_sandbox_leaves_the_exit_codes_of_another_one_alone(tmp_path: Path) -> None:
    one, other = Orphanage(), Orphanage()
    ended = subprocess.Popen(["sh", "-c", "exit 7"])
    one.leaders.add(ended.pid)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    other.sweep(-1, tmp_path)
    one.leaders.discard(ended.pid)
    assert ended.wait() == 7
