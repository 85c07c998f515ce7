"""One suite of attacks on every sandbox: held where that is claimed, ended with a reason, and nothing is left."""

import asyncio
import contextlib
import ctypes
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services import workspace
from tests.sandboxes.attacks import CROWD, CURIOUS, GREEDY, REMAINS, SURVIVOR, Curious, Greedy
from tests.sandboxes.prying import PRYING
from tests.sandboxes.stand import KINDS, Stand, has_groups, make, mounts_below, processes_with

WORK = "print(sum(n * n for n in range(300_000)))"
SECRET = "a secret of the host"
BOMBS = {"fork bomb", "a bomb that leaves session and parent, deaf to its end"}
TABLE = Path(__file__).parents[2] / "docs/sandboxes.md"


@pytest.fixture(params=KINDS)
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    made = make(request.param)
    yield made
    await made.sandbox.close()


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Path]:
    """A folder that is cleared whatever happens: no other program could remove what some attacks leave."""
    yield tmp_path
    workspace.clear(tmp_path)


@pytest.fixture
def lures(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Things of the host that nobody inside may get at."""
    files = [tmp_path / name for name in ("run/users/scheduler", "run/tasks/t/tests/test.sh", "run/work/other/ws/plan")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text(SECRET)
    name = f"gyre-{os.getpid()}-{tmp_path.name}"
    with (
        _shared(os.getpid()),
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        abstract.bind(f"\0{name}")
        abstract.listen(8)
        echo = threading.Thread(target=_echo, args=(udp,), daemon=True)
        echo.start()
        yield {
            "LURE_PORT": str(tcp.getsockname()[1]),
            "LURE_UDP": str(udp.getsockname()[1]),
            "LURE_ABSTRACT": name,
            "LURE_FILES": ":".join(map(str, files)),
            "LURE_SECRET_NAME": "PYTEST_CURRENT_TEST",
            "LURE_PID": str(os.getpid()),
            "LURE_SHARED": str(os.getpid()),
        }
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", udp.getsockname())
        echo.join()


@contextlib.contextmanager
def _shared(key: int) -> Iterator[None]:
    """Memory of the host that is found by a number and by a name."""
    libc, named = ctypes.CDLL(None), Path("/dev/shm", str(key))
    segment = libc.shmget(key, 4096, 0o1600)  # made anew, for its user
    assert segment >= 0
    named.write_text(SECRET)
    try:
        yield
    finally:
        libc.shmctl(segment, 0, None)
        named.unlink()


def _echo(udp: socket.socket) -> None:
    while True:
        said, asker = udp.recvfrom(9)
        if said == b"end":
            return
        udp.sendto(said, asker)


@pytest.mark.parametrize("attack", GREEDY, ids=lambda attack: attack.name)
async def test_what_uses_too_much_is_ended_and_says_why(boxes: Path, stand: Stand, attack: Greedy) -> None:
    _claimed(stand, attack)
    seconds = 0.5 if attack.ending == "timeout" else 60.0
    word = f"greedy-{boxes}"
    attacking = asyncio.create_task(stand.sandbox.run(stand.command(boxes / "a", attack.script, word, seconds=seconds)))
    neighbour = await stand.sandbox.run(stand.command(boxes / "b", WORK))
    ended = await attacking
    assert (ended.ending, neighbour.ending, neighbour.exit_code) == (attack.ending, "exited", 0), ended
    assert attack.word in ended.reason
    assert processes_with(word) == []
    await asyncio.to_thread(workspace.clear, boxes / "a")
    assert not (boxes / "a").exists()


@pytest.mark.parametrize("attack", [*CURIOUS, *PRYING], ids=lambda attack: attack.name)
async def test_what_reaches_out_gets_nothing(
    tmp_path: Path, stand: Stand, attack: Curious, lures: dict[str, str]
) -> None:
    _claimed(stand, attack)
    ended = await stand.sandbox.run(stand.command(tmp_path / "box", attack.script, environment=lures))
    said = ended.output.decode(errors="replace")
    assert (ended.ending, ended.exit_code) == ("exited", 0), said
    assert "TRIED" in said
    assert "GOT" not in said
    assert SECRET not in said
    assert mounts_below(tmp_path) == []


async def test_nothing_survives_its_command(tmp_path: Path, stand: Stand) -> None:
    if stand.kind == "process" and not has_groups():
        pytest.skip("no control groups can be made here, which alone know who left session, parent and environment")
    word = f"survivor-{tmp_path}"
    ended = await stand.sandbox.run(stand.command(tmp_path / "box", SURVIVOR, word))
    assert (ended.ending, ended.exit_code) == ("exited", 0), ended
    assert processes_with(word) == []


async def test_processes_that_have_ended_do_not_count(tmp_path: Path, stand: Stand) -> None:
    ended = await stand.sandbox.run(stand.command(tmp_path / "box", CROWD, seconds=30.0))
    assert (ended.ending, ended.last_line) == ("exited", "TRIED"), ended


async def test_a_file_of_many_names_counts_once(tmp_path: Path, stand: Stand) -> None:
    script = """
import os, time
with open("file", "wb") as file: file.write(bytes(6 << 20))
for n in range(8): os.link("file", "name-%d" % n)
time.sleep(0.6)
"""
    ended = await stand.sandbox.run(stand.command(tmp_path / "box", script))
    assert (ended.ending, ended.exit_code) == ("exited", 0), ended


async def test_what_is_left_behind_can_be_kept_and_cleared(boxes: Path, stand: Stand) -> None:
    box = boxes / "box"
    ended = await stand.sandbox.run(stand.command(box, REMAINS))
    assert "TRIED" in ended.output.decode(), ended
    workspace.restore(workspace.preserve(box / "ws"), boxes / "again")
    kept = set(os.listdir(boxes / "again"))  # noqa: PTH208 (some are no text)
    assert {"absolute", "upwards", "pipe", "socket"} & kept == set()
    assert {"shut", "sparse", "-rf", "a\nb"} <= kept
    for folder in (box, boxes / "again"):
        workspace.clear(folder)
        assert not folder.exists()


@pytest.mark.parametrize("leads", ["/etc", "../secret", "."])
async def test_a_link_in_the_place_of_a_workspace_gets_nothing_kept(boxes: Path, stand: Stand, leads: str) -> None:
    (boxes / "secret").mkdir()
    (boxes / "secret/plan").write_text(SECRET)
    script = "import os, sys; os.rename('../ws', '../was'); os.symlink(sys.argv[1], '../ws'); print('TRIED')"
    ended = await stand.sandbox.run(stand.command(boxes / "box", script, leads))
    assert ended.last_line == "TRIED", ended
    with pytest.raises(workspace.WorkspaceError, match="something else lies in its place"):
        workspace.preserve(boxes / "box/ws")
    workspace.clear(boxes / "box")
    assert (boxes / "secret/plan").read_text() == SECRET


async def test_only_its_reach_is_reached(tmp_path: Path, stand: Stand) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"reached " + await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reach = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    script = """
import os, socket
from urllib.parse import urlsplit
with socket.create_connection((urlsplit(os.environ["URL"]).hostname, urlsplit(os.environ["URL"]).port), 10) as calling:
    calling.sendall(b"through\\n"); print(calling.makefile().read())
"""
    long = tmp_path / ("d" * 100) / ("e" * 100)  # longer than the address of a Unix socket may be
    long.mkdir(parents=True)
    async with server:
        command = stand.command(
            long / "box", script, reach=reach, environment={"URL": stand.sandbox.address(f"{reach}/v1")}
        )
        ended = await stand.sandbox.run(command)
    assert ended.last_line == "reached through", ended


async def test_a_flood_to_its_reach_leaves_time_to_others(tmp_path: Path, stand: Stand) -> None:
    taken, calls = 0, set[asyncio.Task[None] | None]()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        calls.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                taken += len(piece)
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    reach = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    script = """
import os, socket, threading
from urllib.parse import urlsplit
def flood():
    place = urlsplit(os.environ["URL"])
    with socket.create_connection((place.hostname, place.port)) as calling:
        while True: calling.sendall(bytes(1 << 16))
for _ in range(8): threading.Thread(target=flood).start()
"""
    async with server:
        command = stand.command(
            tmp_path / "a", script, reach=reach, seconds=3.0, environment={"URL": stand.sandbox.address(reach)}
        )
        attacking = asyncio.create_task(stand.sandbox.run(command))
        neighbour = await stand.sandbox.run(stand.command(tmp_path / "b", WORK))
        ended = await attacking
        await asyncio.gather(*filter(None, calls))
    assert (ended.ending, neighbour.ending, neighbour.exit_code) == ("timeout", "exited", 0)
    assert taken > 0


def test_the_page_claims_what_is_tested() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE))
    for attack in (*GREEDY, *CURIOUS, *PRYING):
        said = [cell.strip() for cell in rows[attack.name].split("|")]
        held = [kind for kind, cell in zip((*KINDS, "kubernetes"), said, strict=True) if cell.startswith("held")]
        assert set(held) == attack.held_by, attack.name


def _claimed(stand: Stand, attack: Greedy | Curious) -> None:
    if stand.kind not in attack.held_by:
        pytest.skip(f"{stand.kind} shares it with the host and does not claim to hold it")
    if stand.kind == "process" and attack.name in BOMBS and os.geteuid() == 0 and not has_groups():
        pytest.skip("no control groups can be made here, and the kernel does not hold root to a number of processes")
