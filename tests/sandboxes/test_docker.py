"""Containers of a real engine; what all sandboxes are put to is in test_attacks.py."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gyre.config_containers import DockerSection
from gyre.config_sandbox import SandboxSection
from gyre.sandboxes.docker import DockerSandbox
from gyre.sandboxes.docker_engine import Engine
from gyre.sandboxes.docker_spec import LABEL, Body
from gyre.sandboxes.make import check_sandbox
from gyre.sandboxes.owners import BOX
from gyre.sandboxes.port import OUTPUT_BYTES, Command, CommandLost, Limits, SandboxError
from tests.pipes import told
from tests.sandboxes.engine import IMAGE, SOCKET, on_an_engine, with_a_client

LIMITS = Limits(memory_bytes=96 << 20, disk_bytes=4 << 20, file_bytes=8 << 20, look_seconds=0.1, processes=32)
CHOSEN = DockerSection(socket=str(SOCKET))


@pytest.fixture
async def sandbox() -> AsyncIterator[DockerSandbox]:
    made = DockerSandbox(CHOSEN, IMAGE, LIMITS)
    yield made
    await made.close()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine(SOCKET)
    yield made
    await made.close()


def command(box: Path, *arguments: str, seconds: float = 60.0, grace: float = 0.2, **more: object) -> Command:
    (box / "ws").mkdir(parents=True, exist_ok=True)
    return Command(arguments, box / "ws", box, {"TOLD": "yes"}, seconds, grace, **more)  # type: ignore[arg-type]


def shell(box: Path, script: str, seconds: float = 60.0, grace: float = 0.2) -> Command:
    return command(box, "/bin/sh", "-c", script, seconds=seconds, grace=grace)


async def containers(engine: Engine, box: Path) -> list[str]:
    """Those that work below a folder."""
    found = await engine.labelled(LABEL)
    return [each["Id"] for each in found if Path(each["Labels"][BOX]).is_relative_to(box)]


def test_the_engine_is_told_of_every_limit(tmp_path: Path) -> None:
    body = Body(LIMITS, "1000:1000").of(shell(tmp_path, "true"), IMAGE, {"a": "label"})
    host = body["HostConfig"]
    assert (body["User"], body["Labels"]) == ("1000:1000", {LABEL: "1", "a": "label"})
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (96 << 20, 96 << 20, 32)
    assert "Privileged" not in host
    assert [each["Target"] for each in host["Mounts"]] == [str(tmp_path)]


def test_paths_are_found_where_they_lie_for_the_engine() -> None:
    mounts = {"/runs": "gyre_runs", "/runs/here": "/srv/here", "/opt/gyre": ""}
    body = Body(LIMITS, "1000:1000", mounts)
    assert body.mount(Path("/runs/demo/work/e")) == {
        "Type": "volume",
        "Source": "gyre_runs",
        "Target": "/runs/demo/work/e",
        "ReadOnly": False,
        "VolumeOptions": {"NoCopy": True, "Subpath": "demo/work/e"},
    }
    there = body.mount(Path("/runs/here/e"), read_only=True)
    assert there == {"Type": "bind", "Source": "/srv/here/e", "Target": "/runs/here/e", "ReadOnly": True}
    assert body.mount(Path("/opt/gyre/lib")) is None
    assert body.mount(Path("/elsewhere")) == {
        "Type": "bind",
        "Source": "/elsewhere",
        "Target": "/elsewhere",
        "ReadOnly": False,
    }


def test_a_folder_that_would_not_be_seen_is_refused(tmp_path: Path) -> None:
    wanted = Command(("true",), Path("/elsewhere"), tmp_path, {}, 1.0)
    with pytest.raises(SandboxError, match="folder /elsewhere: lies neither in"):
        Body(LIMITS, "1000:1000").of(wanted, IMAGE, {})


async def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    sandbox = DockerSandbox(DockerSection(socket=str(tmp_path / "no.sock")), IMAGE, LIMITS)
    with pytest.raises(SandboxError, match=r"docker: no engine can be asked at .*no\.sock"):
        await sandbox.run(shell(tmp_path / "box", "true"))
    await sandbox.close()


def test_a_run_is_refused_where_no_engine_answers(tmp_path: Path) -> None:
    (tmp_path / "no.sock").touch()
    section = SandboxSection(kind="docker", docker=DockerSection(socket=str(tmp_path / "no.sock")))
    with pytest.raises(SandboxError, match=r"docker: no engine answers at .*no\.sock: .*; start one, or correct"):
        check_sandbox(section)


@on_an_engine
def test_a_run_is_refused_where_its_image_is_not() -> None:
    check_sandbox(SandboxSection(kind="docker", image=IMAGE, docker=CHOSEN))
    with pytest.raises(SandboxError, match="image no/such:1: is not on this machine; `docker pull no/such:1`"):
        check_sandbox(SandboxSection(kind="docker", image="no/such:1", docker=CHOSEN))


@on_an_engine
async def test_a_command_runs_in_its_folder_as_nobody_with_little_else(tmp_path: Path, sandbox: DockerSandbox) -> None:
    box = tmp_path / "box"
    ended = await sandbox.run(shell(box, "pwd; id -u; env; touch /x; cat /proc/1/status; echo left >here; exit 3"))
    lines = ended.output.decode().splitlines()
    assert (ended.ending, ended.exit_code, ended.reason, lines[0]) == ("exited", 3, "", str(box / "ws"))
    assert int(lines[1]) != 0
    assert {f"HOME={box}/home", f"TMPDIR={box}/tmp", "TOLD=yes"} <= set(lines)
    assert any("Read-only file system" in line for line in lines)
    assert {"CapEff:\t0000000000000000", "NoNewPrivs:\t1"} <= set(lines)
    assert (box / "ws/here").read_text() == "left\n"


@on_an_engine
async def test_what_is_visible_can_be_read_and_not_written(tmp_path: Path, sandbox: DockerSandbox) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/agent.py").write_text("print('from', __file__)\n")
    (tmp_path / "other").mkdir()
    script = f"python3 {tmp_path}/code/agent.py; echo >{tmp_path}/code/x; ls {tmp_path}"
    wanted = command(tmp_path / "box", "/bin/sh", "-c", script, visible=(tmp_path / "code",))
    said = (await sandbox.run(wanted)).output.decode()
    assert f"from {tmp_path}/code/agent.py" in said
    assert "Read-only file system" in said
    assert "other" not in said


@on_an_engine
async def test_of_a_run_that_lies_in_something_visible_only_the_box_is_seen(tmp_path: Path) -> None:
    run = tmp_path / "home/runs/r"
    (run / "work/other").mkdir(parents=True)
    (run / "tests").mkdir()
    (run / "tests/t").write_text("told")
    (run.parents[1] / "tool").write_text("a tool, ")
    sandbox = DockerSandbox(CHOSEN, IMAGE, LIMITS, (tmp_path / "home", run / "tests/t"), run)
    script = f"cat {tmp_path}/home/tool {run}/tests/t; ls {run} {run}/work; (echo >{run}/x) 2>/dev/null; pwd"
    ended = await sandbox.run(shell(run / "work/e", script))
    said = ended.output.decode()
    assert said.startswith("a tool, told")
    assert "other" not in said
    assert f"{run}/work/e/ws" in said.splitlines()
    assert not (run / "x").exists()
    await sandbox.close()


@on_an_engine
async def test_an_image_that_is_not_there_is_named_and_not_fetched(tmp_path: Path, sandbox: DockerSandbox) -> None:
    with pytest.raises(SandboxError, match="image no/such:1: is not on this machine, and none is fetched"):
        await sandbox.run(command(tmp_path, "true", image="no/such:1"))


@on_an_engine
async def test_an_image_that_cannot_be_fetched_is_named(tmp_path: Path) -> None:
    sandbox = DockerSandbox(DockerSection(socket=str(SOCKET), pull="missing"), "127.0.0.1:1/no/such:1", LIMITS)
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:1"):
        await sandbox.run(command(tmp_path, "true"))
    await sandbox.close()


@on_an_engine
async def test_a_command_that_is_not_there_ends_with_a_reason(tmp_path: Path, sandbox: DockerSandbox) -> None:
    ended = await sandbox.run(command(tmp_path, "/no/such/program"))
    assert ended.exit_code == 127
    assert "/no/such/program" in ended.output.decode()


@on_an_engine
async def test_a_flood_keeps_its_last_64_kib(tmp_path: Path, sandbox: DockerSandbox) -> None:
    ended = await sandbox.run(command(tmp_path, "yes", "a flood", seconds=1.0))
    assert ended.ending == "timeout"
    assert len(ended.output) == OUTPUT_BYTES


@on_an_engine
async def test_a_flood_that_goes_on_ends_its_command(tmp_path: Path) -> None:
    sandbox = DockerSandbox(CHOSEN, IMAGE, replace(LIMITS, output_bytes=1 << 20))
    ended = await sandbox.run(command(tmp_path, "yes", "a flood"))
    assert (ended.ending, ended.reason) == ("output", "ended because it wrote more than 1 MB of output")
    await sandbox.close()


@on_an_engine
async def test_what_ignores_the_deadline_is_killed_after_its_grace(tmp_path: Path, sandbox: DockerSandbox) -> None:
    ended = await sandbox.run(shell(tmp_path, "trap '' TERM; while :; do sleep 0.1; done", seconds=1.0))
    assert (ended.ending, ended.exit_code) == ("timeout", -signal.SIGKILL)
    assert ended.reason == "ended at its deadline of 1 s"


@on_an_engine
async def test_a_command_may_clean_up_in_its_grace(tmp_path: Path, sandbox: DockerSandbox) -> None:
    script = "trap 'echo cleaned; exit 7' TERM; while :; do sleep 0.05; done"
    ended = await sandbox.run(shell(tmp_path, script, seconds=1.0, grace=30.0))
    assert (ended.ending, ended.exit_code, ended.last_line) == ("timeout", 7, "cleaned")


@on_an_engine
async def test_a_stop_ends_a_command(tmp_path: Path, sandbox: DockerSandbox) -> None:
    stop = asyncio.Event()
    (tmp_path / "ws").mkdir()
    os.mkfifo(tmp_path / "ws/up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path, "echo up >up; exec sleep 300"), stop))
    await told(tmp_path / "ws/up")
    stop.set()
    ended = await running
    assert (ended.ending, ended.exit_code) == ("stopped", -signal.SIGTERM)


@on_an_engine
async def test_cancelling_the_call_removes_the_container(
    tmp_path: Path, sandbox: DockerSandbox, engine: Engine
) -> None:
    (tmp_path / "ws").mkdir()
    os.mkfifo(tmp_path / "ws/up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path, "setsid sleep 300 & echo up >up; wait")))
    await told(tmp_path / "ws/up")
    assert len(await containers(engine, tmp_path)) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await containers(engine, tmp_path) == []


@on_an_engine
async def test_an_engine_that_fails_to_answer_beside_a_command_costs_no_work(
    tmp_path: Path, sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unable(container: str) -> int:
        raise SandboxError(f"docker: the engine does not answer: {container}")

    monkeypatch.setattr(sandbox._engine, "processes", unable)
    monkeypatch.setattr(sandbox._engine, "remove", unable)
    ended = await sandbox.run(shell(tmp_path, "sleep 0.5; echo the work; exit 3"))
    assert (ended.ending, ended.exit_code, ended.last_line) == ("exited", 3, "the work")


@on_an_engine
@pytest.mark.parametrize("unanswered", ["wait", "inspect"])
async def test_what_ends_a_command_that_works_loses_it_and_is_no_reason_not_to_start(
    tmp_path: Path, sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch, unanswered: str
) -> None:
    async def cut(container: str) -> int:
        raise SandboxError("docker: no engine can be asked")

    monkeypatch.setattr(sandbox._engine, unanswered, cut)
    with pytest.raises(CommandLost, match="its sandbox lost it: docker: no engine can be asked"):
        await sandbox.run(shell(tmp_path, "sleep 300"))


@on_an_engine
async def test_memory_processes_and_disk_are_told_apart(tmp_path: Path, sandbox: DockerSandbox) -> None:
    eats = "b = []\nwhile True: b.append(bytearray(1 << 20))"
    ended = await sandbox.run(command(tmp_path / "memory", "python3", "-c", eats))
    assert (ended.ending, ended.exit_code) == ("memory", -signal.SIGKILL)
    assert ended.reason == "ended because it used more than 96 MB of memory"
    forks = """
import os, time
while True:
    try:
        if not os.fork():
            time.sleep(300)
    except OSError:
        time.sleep(1)
"""
    assert (await sandbox.run(command(tmp_path / "processes", "python3", "-c", forks))).ending == "processes"
    fills = "for n in 1 2 3; do head -c 2000000 /dev/zero >$n; done; sleep 300"
    assert (await sandbox.run(shell(tmp_path / "disk", fills))).ending == "disk"


@on_an_engine
async def test_no_network_is_there_but_its_own_loopback(tmp_path: Path, sandbox: DockerSandbox) -> None:
    ended = await sandbox.run(shell(tmp_path, "tail -n +3 /proc/net/dev; cat /proc/net/route"))
    names = [line.partition(":")[0].strip() for line in ended.output.decode().splitlines() if ":" in line]
    assert names == ["lo"]


@on_an_engine
async def test_what_it_may_reach_is_reached_and_nothing_beside(tmp_path: Path, sandbox: DockerSandbox) -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=f"heard {request.path}")

    app = web.Application()
    app.add_routes([web.get("/{rest:.*}", hello)])
    async with TestServer(app, host="127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}"
        ask = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1]).read().decode())"
        wanted = ("python3", "-c", ask)
        box = tmp_path / "box"
        ended = await sandbox.run(command(box, *wanted, sandbox.address(f"{url}/x/token"), reach=url))
        assert (ended.exit_code, ended.last_line) == (0, "heard /x/token")
        ended = await sandbox.run(command(box, *wanted, url, reach=url))
        assert "Connection refused" in ended.last_line
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".owner-")) == ["box"]


@on_an_engine
async def test_a_door_needs_an_image_that_can_open_one(tmp_path: Path) -> None:
    sandbox = DockerSandbox(DockerSection(socket=str(SOCKET), door_image="no/such:1"), IMAGE, LIMITS)
    with pytest.raises(SandboxError, match="image no/such:1: is not on this machine"):
        await sandbox.run(command(tmp_path / "box", "true", reach="http://127.0.0.1:1"))
    await sandbox.close()


@on_an_engine
@with_a_client
async def test_a_box_in_a_named_volume_is_mounted_from_there(tmp_path: Path) -> None:
    made = subprocess.run(["docker", "volume", "create"], capture_output=True, text=True, check=True)
    volume = made.stdout.strip()
    try:
        told_ = subprocess.run(["docker", "volume", "inspect", volume], capture_output=True, text=True, check=True)
        place = Path(json.loads(told_.stdout)[0]["Mountpoint"])
        runs = tmp_path / "runs"  # as a runner that is a container itself would have it
        runs.symlink_to(place)
        chosen = DockerSection(socket=str(SOCKET), mounts={str(runs): volume})
        sandbox = DockerSandbox(chosen, IMAGE, LIMITS)
        ended = await sandbox.run(shell(runs / "demo/work/e", "pwd; echo left >here"))
        await sandbox.close()
        assert ended.last_line == f"{runs}/demo/work/e/ws"
        assert (place / "demo/work/e/ws/here").read_text() == "left\n"
    finally:
        subprocess.run(["docker", "volume", "rm", volume], capture_output=True, check=True)


INSIDE = """
import asyncio, os, sys
from pathlib import Path
from aiohttp import web
from gyre.config_containers import DockerSection
from gyre.sandboxes.docker import DockerSandbox
from gyre.sandboxes.port import Command, Limits

async def hello(request):
    return web.Response(text="heard " + request.path)

async def main(volume, image):
    app = web.Application()
    app.add_routes([web.get("/{rest:.*}", hello)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    sandbox = DockerSandbox(DockerSection(mounts={"/runs": volume}), image, Limits())
    box = Path("/runs/demo/work/e")
    (box / "ws").mkdir(parents=True)
    code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode()); open('left', 'w')"
    words = ("python3", "-c", code, sandbox.address(url) + "/x/token")
    ended = await sandbox.run(Command(words, box / "ws", box, {}, 60, reach=url))
    await sandbox.close()
    print(ended.last_line, os.listdir(box / "ws"), (box / "ws/left").stat().st_uid, os.listdir("/runs/demo/work"))

asyncio.run(main(*sys.argv[1:]))
"""
"""A runner: what it serves is reached from a sibling, through a volume that both see a part of."""


@on_an_engine
@with_a_client
async def test_a_runner_may_be_a_hardened_container_itself(tmp_path: Path) -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11, and this interpreter's packages are for another one")
    (tmp_path / "inside.py").write_text(INSIDE)
    made = subprocess.run(["docker", "volume", "create"], capture_output=True, text=True, check=True)
    volume, root, user = made.stdout.strip(), Path(__file__).parents[2], "10001:10001"
    shown = {root / "gyre": "/src/gyre", root / "schemas": "/src/schemas", tmp_path / "inside.py": "/inside.py"}
    shown[Path(sysconfig.get_paths()["purelib"])] = "/site"
    mounts = [word for path, where in shown.items() for word in ("--volume", f"{path}:{where}:ro")]
    mounts += ["--volume", f"{volume}:/runs", "--volume", f"{SOCKET}:/var/run/docker.sock"]
    hardened = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--tmpfs", "/tmp"]
    who = ["--user", user, "--group-add", str(SOCKET.stat().st_gid)]
    env = ["--env", "PYTHONPATH=/src:/site", "--env", "PYTHONDONTWRITEBYTECODE=1"]
    try:
        owned = ["docker", "run", "--rm", "--volume", f"{volume}:/runs", IMAGE, "chown", user, "/runs"]
        subprocess.run(owned, capture_output=True, check=True)
        command = ["docker", "run", "--rm", *hardened, *who, *env, *mounts, IMAGE, "python3", "/inside.py"]
        done = subprocess.run([*command, volume, IMAGE], capture_output=True, text=True, check=False)
        assert done.stdout == "heard /x/token ['left'] 10001 ['e']\n", done.stderr
    finally:
        subprocess.run(["docker", "volume", "rm", volume], capture_output=True, check=True)


@on_an_engine
async def test_what_a_killed_owner_left_is_removed_by_the_next(
    tmp_path: Path, sandbox: DockerSandbox, engine: Engine
) -> None:
    program = f"""
import asyncio
from pathlib import Path
from gyre.config_containers import DockerSection
from gyre.sandboxes.docker import DockerSandbox
from gyre.sandboxes.port import Command, Limits
box = Path({str(tmp_path / "a")!r})
sandbox = DockerSandbox(DockerSection(socket={str(SOCKET)!r}), {IMAGE!r}, Limits())
asyncio.run(sandbox.run(Command(("/bin/sh", "-c", "echo up >up; sleep 300"), box, box, {{}}, 60)))
"""
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/up")
    parent = subprocess.Popen([sys.executable, "-c", program])
    await told(tmp_path / "a/up")
    await sandbox.run(shell(tmp_path / "b", "true"))
    assert len(await containers(engine, tmp_path / "a")) == 1  # its owner is there
    parent.kill()
    parent.wait()
    other = DockerSandbox(CHOSEN, IMAGE, LIMITS)
    await other.run(shell(tmp_path / "c", "true"))
    assert await containers(engine, tmp_path) == []
    await other.close()


@on_an_engine
async def test_leftovers_of_a_box_end_when_they_are_asked_for(
    tmp_path: Path, sandbox: DockerSandbox, engine: Engine
) -> None:
    (tmp_path / "ws").mkdir()
    os.mkfifo(tmp_path / "ws/up")
    running = asyncio.create_task(sandbox.run(shell(tmp_path, "echo up >up; sleep 300")))
    await told(tmp_path / "ws/up")
    assert await sandbox.end_leftovers(tmp_path / "other") == 0
    assert await sandbox.end_leftovers(tmp_path) == 1
    with suppress(SandboxError):
        assert (await running).exit_code == -signal.SIGKILL
    assert await containers(engine, tmp_path) == []


@on_an_engine
async def test_closing_ends_what_runs(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "ws").mkdir()
    os.mkfifo(tmp_path / "ws/up")
    sandbox = DockerSandbox(CHOSEN, IMAGE, LIMITS)
    running = asyncio.create_task(sandbox.run(shell(tmp_path, "echo up >up; sleep 300")))
    await told(tmp_path / "ws/up")
    await sandbox.close()
    await asyncio.gather(running, return_exceptions=True)
    assert await containers(engine, tmp_path) == []


@on_an_engine
@pytest.mark.timeout(600)
async def test_two_hundred_leave_nothing(
    tmp_path: Path, engine: Engine, sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_it, own = sandbox._engine.start, {str(tmp_path)}

    async def started(container: str) -> None:
        await start_it(container)
        about = await engine.inspect(container)  # it waits at its gate
        layer, network = (about["GraphDriver"]["Data"] or {}).get("MergedDir"), about["NetworkSettings"]["SandboxKey"]
        own.update((container, layer or container, Path(network).name or container))

    monkeypatch.setattr(sandbox._engine, "start", started)
    for start in range(0, 200, 8):
        batch = [shell(tmp_path / str(number), f"echo {number}") for number in range(start, start + 8)]
        ended = await asyncio.gather(*(sandbox.run(each) for each in batch))
        assert [(each.ending, each.exit_code, each.output) for each in ended] == [
            ("exited", 0, f"{number}\n".encode()) for number in range(start, start + 8)
        ]
    await sandbox.close()
    assert await containers(engine, tmp_path) == []
    mounts = Path("/proc/self/mounts").read_text()  # other tests may have some just now
    assert len(own) > 200
    assert [each for each in own if each in mounts] == []
    assert list(tmp_path.glob(".owner-*")) == []
