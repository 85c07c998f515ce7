"""Namespaces of bubblewrap: what is shown and what is not, how it is asked to end, and when it cannot begin."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gyre.config_sandbox import SandboxSection
from gyre.sandboxes import seccomp
from gyre.sandboxes.bubblewrap import BubblewrapSandbox
from gyre.sandboxes.make import check_sandbox
from gyre.sandboxes.port import Command, SandboxError
from gyre.sandboxes.view import view
from tests.pipes import told
from tests.sandboxes.stand import LIMITS, lacking

WHY = lacking("bubblewrap")
works_here = pytest.mark.skipif(bool(WHY), reason=WHY or "it works here")


@pytest.fixture
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    made = BubblewrapSandbox(LIMITS)
    yield made
    await made.close()


def shell(box: Path, script: str, visible: tuple[Path, ...] = (), seconds: float = 30.0, grace: float = 0.2) -> Command:
    (box / "ws").mkdir(parents=True, exist_ok=True)
    return Command(("/bin/sh", "-c", script), box / "ws", box, {}, seconds, grace, visible)


@works_here
async def test_a_command_is_shown_its_box_the_system_and_what_is_visible(
    tmp_path: Path, sandbox: BubblewrapSandbox
) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/code").write_text("seen")
    (tmp_path / "link").symlink_to("shown/code")
    script = f"cat {tmp_path}/shown/code {tmp_path}/link; ls {tmp_path}; touch {tmp_path}/shown/new; pwd; touch here"
    visible = (tmp_path / "shown", tmp_path / "shown/code", tmp_path / "link", tmp_path / "not there")
    ended = await sandbox.run(shell(tmp_path / "box", script, visible))
    said = ended.output.decode()
    assert said.startswith("seenseen")
    assert "box\nlink\nshown\n" in said
    assert "Read-only file system" in said
    assert said.endswith(f"{tmp_path}/box/ws\n")
    assert (tmp_path / "box/ws/here").exists()


@works_here
async def test_what_is_hidden_stays_so_in_something_visible(tmp_path: Path) -> None:
    run = tmp_path / "home/run"
    for name in ("users/login", "tasks/t/tests/test.sh", "work/other/ws/plan", "work/x/ws/mine"):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text("")
    made = BubblewrapSandbox(LIMITS, (tmp_path / "home",), hidden=run)
    script = f"for path in {run} {run}/work {run}/users; do touch $path/new || :; done; find {tmp_path}/home -type f"
    ended = await made.run(shell(run / "work/x", f"({script}) 2>/dev/null", (run / "tasks/t/tests",)))
    await made.close()
    assert sorted(ended.output.decode().split()) == [f"{run}/tasks/t/tests/test.sh", f"{run}/work/x/ws/mine"]


@works_here
async def test_what_is_hidden_stays_so_by_the_name_of_a_link(tmp_path: Path) -> None:
    run, link = tmp_path / "data/runs/demo", tmp_path / "home/d"
    for name in ("proxy.key", "tasks/t/test.sh", "work/x/ws/mine"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    link.parent.mkdir()
    link.symlink_to(tmp_path / "data")
    made = BubblewrapSandbox(LIMITS, (link,), hidden=run)
    wanted = shell(run / "work/x", f"find -L {tmp_path} -type f", (link / "runs/demo/tasks",))
    ended = await made.run(wanted)
    await made.close()
    test = "runs/demo/tasks/t/test.sh"
    mine = f"{run}/work/x/ws/mine"
    assert sorted(ended.output.decode().split()) == [f"{tmp_path}/data/{test}", mine, f"{link}/{test}"]


@works_here
async def test_what_is_hidden_stays_so_among_the_systems_programs(tmp_path: Path) -> None:
    hidden = Path("/usr/share")
    some = next(path for path in sorted(hidden.iterdir()) if path.is_dir() and not path.is_symlink())
    made = BubblewrapSandbox(LIMITS, hidden=hidden)
    alone = await made.run(shell(tmp_path, f"ls -A {hidden}; touch {hidden}/new"))
    shown = await made.run(shell(tmp_path, f"ls -A {hidden}", (some,)))
    whole = await made.run(shell(tmp_path, f"ls -A {hidden}", (hidden,)))
    await made.close()
    assert alone.output.decode().startswith("touch: ")
    assert "Read-only file system" in alone.output.decode()
    assert (shown.output.decode().split(), whole.output) == ([some.name], b"")


@works_here
@pytest.mark.parametrize("said", ["bwrap: no", "bwrap: execvp x", "prlimit: failed", '{ "exit-code": 1 }'])
async def test_no_command_can_say_that_it_was_never_started(
    tmp_path: Path, sandbox: BubblewrapSandbox, said: str
) -> None:
    """Its work would count as none: it would be left out instead of scored."""
    script = f"for n in 3 4 5 6 7 8 9; do echo '{said}' >&$n; done 2>/dev/null; echo '{said}'; exit 1"
    ended = await sandbox.run(shell(tmp_path, script))
    assert (ended.ending, ended.exit_code, ended.last_line) == ("exited", 1, said)


@works_here
async def test_what_a_command_puts_in_the_place_of_its_door_changes_nothing(
    tmp_path: Path, sandbox: BubblewrapSandbox
) -> None:
    wanted = shell(tmp_path, "rm -f ../door; mkdir -p ../door/in && echo done")
    ended = await sandbox.run(replace(wanted, reach="http://127.0.0.1:1"))
    assert (ended.exit_code, ended.last_line, (tmp_path / "door/in").is_dir()) == (0, "done", True)


@works_here
async def test_one_that_was_never_started_is_said_so(tmp_path: Path, sandbox: BubblewrapSandbox) -> None:
    (tmp_path / "elsewhere").mkdir()
    command = replace(shell(tmp_path / "box", "true"), folder=tmp_path / "elsewhere")
    with pytest.raises(SandboxError, match=r"cannot be started: bwrap: Can't chdir"):
        await sandbox.run(command)


@works_here
async def test_it_is_not_root_and_has_no_capability_and_gains_none(tmp_path: Path, sandbox: BubblewrapSandbox) -> None:
    ended = await sandbox.run(shell(tmp_path, "id -u; grep -E '^(Cap|NoNewPrivs)' /proc/self/status"))
    said = ended.output.decode().split()
    assert said[0] == "1000"
    assert set(said[2::2]) == {"0000000000000000", "1"}


@works_here
async def test_it_counts_as_alone(tmp_path: Path, sandbox: BubblewrapSandbox) -> None:
    ended = await sandbox.run(shell(tmp_path, "ls -d /proc/[0-9]* | wc -l; hostname; ls /proc/sys/net >/dev/null"))
    processes, name = ended.output.decode().split()
    assert int(processes) <= 5
    assert name == "sandbox"


@works_here
async def test_a_command_may_clean_up_when_it_is_asked_to_end(tmp_path: Path, sandbox: BubblewrapSandbox) -> None:
    stop, pipe = asyncio.Event(), tmp_path / "box/ws/up"
    script = "trap 'echo cleaned; exit 7' TERM; echo up >up; while :; do sleep 0.05; done"
    command = shell(tmp_path / "box", script, grace=10.0)
    os.mkfifo(pipe)
    running = asyncio.create_task(sandbox.run(command, stop))
    assert await told(pipe) == "up\n"
    stop.set()
    ended = await running
    assert (ended.ending, ended.exit_code, ended.last_line) == ("stopped", 7, "cleaned")
    assert ended.reason == "ended because its cancellation was asked for"


@works_here
async def test_small_folders_in_memory_are_bounded(tmp_path: Path, sandbox: BubblewrapSandbox) -> None:
    script = (
        "for place in /tmp /dev/shm; do head -c 100000000 /dev/zero >$place/fill; done; du -sb /tmp/fill /dev/shm/fill"
    )
    ended = await sandbox.run(shell(tmp_path, script))
    sizes = [int(line.split()[0]) for line in ended.output.decode().splitlines() if line[0].isdigit()]
    assert sizes
    assert max(sizes) <= LIMITS.memory_bytes // 8


@works_here
async def test_system_calls_that_open_kernels_are_refused(tmp_path: Path, sandbox: BubblewrapSandbox) -> None:
    filter_ = seccomp.compiled()
    if filter_ is None:
        pytest.skip("libseccomp is not installed")
    os.close(filter_)
    ended = await sandbox.run(shell(tmp_path, "grep Seccomp: /proc/self/status"))
    assert ended.output.split() == [b"Seccomp:", b"2"]
    script = """python3 -c '
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
for number in (321, 425, 298, 250): print(libc.syscall(number, 0, 0, 0), ctypes.get_errno())
try: socket.socket(40, socket.SOCK_STREAM)
except OSError as error: print(error.errno)
'"""
    if os.uname().machine == "x86_64":  # bpf, io_uring_setup, perf_event_open, keyctl; AF_VSOCK
        ended = await sandbox.run(shell(tmp_path, script))
        assert ended.output.decode().split() == ["-1", "1"] * 4 + ["97"]


def test_a_sandbox_whose_program_is_missing_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match=r"^bwrap is not installed: install the package bubblewrap$"):
        check_sandbox(SandboxSection(kind="bubblewrap"))


def test_without_user_namespaces_it_says_what_to_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in (("bwrap", 'echo "bwrap: No permissions to create new namespace" >&2; exit 1'), ("prlimit", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"^bwrap: No permissions to create new namespace: allow user namespaces"):
        check_sandbox(SandboxSection(kind="bubblewrap"))


def test_the_root_is_closed_last_and_the_box_is_all_that_can_be_written(tmp_path: Path) -> None:
    words = view(tmp_path, (Path("/usr/share"),), None, 1 << 20)
    assert words[-5:] == ["--bind", str(tmp_path), str(tmp_path), "--remount-ro", "/"]
    assert words.count("--bind") == 1
    assert "/usr/share" not in words  # in /usr already
