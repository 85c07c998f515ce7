"""The gate before a command in a container, and what the engine says of one that it does not pass on."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gyre.sandboxes import docker
from gyre.sandboxes.docker import DockerSandbox
from gyre.sandboxes.docker_engine import Engine
from gyre.sandboxes.docker_gate import SHELL, Gate
from gyre.sandboxes.port import CommandLost, SandboxError
from tests.sandboxes.engine import IMAGE, SOCKET, on_an_engine
from tests.sandboxes.test_docker import CHOSEN, LIMITS, containers, shell

Frames = AsyncIterator[tuple[int, bytes]]
OUT, ERR = 1, 2


async def after(gate: Gate, *frames: tuple[int, bytes]) -> list[bytes]:
    async def all_of_it() -> Frames:
        for each in frames:
            yield each

    return [piece async for piece in gate.after(all_of_it())]


async def test_what_is_said_at_the_gate_is_no_output_however_it_is_cut() -> None:
    whole = ((OUT, b"word\n"), (ERR, b"word\n"), (OUT, b"word\n"), (OUT, b"a\n"), (ERR, b"b\n"), (OUT, b"word\n"))
    cut = ((ERR, b"wo"), (OUT, b"word\nwor"), (ERR, b"rd\nb\n"), (OUT, b"d\na\nword\n"))
    assert b"".join(await after(Gate("word"), *whole)) == b"a\nb\nword\n"
    assert b"".join(await after(Gate("word"), *cut)) == b"b\na\nword\n"


async def test_what_others_say_before_the_gate_is_output() -> None:
    assert await after(Gate("word"), (ERR, b"ld.so: no such library\n")) == [b"ld.so: no such library\n"]
    mixed = ((ERR, b"ld.so: careful\nword\n"), (OUT, b"word\nword\nhi\n"))
    assert await after(Gate("word"), *mixed) == [b"ld.so: careful\n", b"hi\n"]


async def test_a_gate_opens_when_both_streams_are_heard_and_not_before() -> None:
    heard = []
    gate = Gate("word")

    async def one_by_one() -> Frames:
        for each in ((OUT, b"word\n"), (ERR, b"word\n"), (OUT, b"word\n")):
            yield each
            heard.append((gate.heard.is_set(), gate.passed.is_set()))

    assert [piece async for piece in gate.after(one_by_one())] == []
    assert heard == [(False, False), (True, False), (True, True)]
    assert not gate.over


async def test_what_ends_before_its_gate_is_said_to_be_over() -> None:
    gate = Gate("word")
    assert await after(gate, (OUT, b"word\n")) == []
    assert gate.heard.is_set()
    assert gate.over


async def test_without_a_word_a_gate_stands_open() -> None:
    gate = Gate()
    assert gate.passed.is_set()
    assert gate.before(("true",)) == ("true",)
    assert await after(gate, (OUT, b"hi\n")) == [b"hi\n"]


@pytest.mark.parametrize("cut", [b"\x01\0\0", b"\x01\0\0\0\0\0\0\x05", b"\x01\0\0\0\0\0\0\x05hel"])
async def test_a_stream_that_breaks_off_is_no_end(tmp_path: Path, cut: bytes) -> None:
    async def attach(_: web.Request) -> web.Response:
        return web.Response(body=b"\x02\0\0\0\0\0\0\x02hi" + cut)

    app = web.Application()
    app.add_routes([web.post("/v1.45/containers/c/attach", attach)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "e.sock")).start()
    engine = Engine(tmp_path / "e.sock")
    async with engine.output("c") as frames:
        assert await anext(frames) == (ERR, b"hi")
        with pytest.raises(SandboxError, match="the output of a container broke off"):
            await anext(frames) and await anext(frames)
    await engine.close()
    await runner.cleanup()


def passing(monkeypatch: pytest.MonkeyPatch, sandbox: DockerSandbox, through: Callable[[Frames], Frames]) -> None:
    """Have what the engine passes on go through something."""
    output = sandbox._engine.output

    @asynccontextmanager
    async def changed(container: str) -> AsyncIterator[Frames]:
        async with output(container) as frames:
            yield through(frames)

    monkeypatch.setattr(sandbox._engine, "output", changed)


@on_an_engine
async def test_a_command_begins_once_the_engine_passes_its_output_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, attentive = DockerSandbox(CHOSEN, IMAGE, LIMITS), asyncio.Event()

    async def late(frames: Frames) -> Frames:
        async for each in frames:
            await attentive.wait()
            yield each

    passing(monkeypatch, sandbox, late)
    script = "touch began; echo one; echo two >&2; printf three; exit 3"
    running = asyncio.create_task(sandbox.run(shell(tmp_path, script, seconds=60.0)))
    await asyncio.sleep(2.0)
    assert not (tmp_path / "ws/began").exists()
    attentive.set()
    ended = await running
    assert ((tmp_path / "ws/began").exists(), ended.exit_code) == (True, 3)
    assert sorted(ended.output.decode().replace("three", "three\n").split()) == ["one", "three", "two"]
    await sandbox.close()


@on_an_engine
async def test_a_command_whose_output_never_comes_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, engine = DockerSandbox(CHOSEN, IMAGE, LIMITS), Engine(SOCKET)

    async def deaf(_: Frames) -> Frames:
        await asyncio.Event().wait()
        yield OUT, b""

    passing(monkeypatch, sandbox, deaf)
    monkeypatch.setattr(docker, "_HEAR_SECONDS", 1.0)
    with pytest.raises(
        SandboxError, match=r"cannot be started: the engine passes nothing of it on within 1 s"
    ) as raised:
        await sandbox.run(shell(tmp_path, "touch began"))
    assert not isinstance(raised.value, CommandLost)
    assert not (tmp_path / "ws/began").exists()
    assert await containers(engine, tmp_path) == []
    await sandbox.close()
    await engine.close()


@on_an_engine
async def test_output_that_breaks_off_loses_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = DockerSandbox(CHOSEN, IMAGE, LIMITS)

    async def broken(frames: Frames) -> Frames:
        async for stream, piece in frames:
            if b"hi" in piece:
                raise SandboxError("docker: the output of a container broke off")
            yield stream, piece

    passing(monkeypatch, sandbox, broken)
    with pytest.raises(CommandLost, match="broke off"):
        await sandbox.run(shell(tmp_path, "echo hi"))
    await sandbox.close()


@on_an_engine
async def test_an_image_without_a_shell_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = DockerSandbox(CHOSEN, IMAGE, LIMITS)

    async def not_there(container: str, path: str) -> bool:
        return bool(container == path)

    monkeypatch.setattr(sandbox._engine, "has", not_there)
    ended = await sandbox.run(shell(tmp_path, "sleep 1; echo hi; tr '\\0' ' ' </proc/1/cmdline"))
    assert (ended.exit_code, ended.output.decode().splitlines()[0]) == (0, "hi")
    assert "-STOP" not in ended.output.decode()
    await sandbox.close()


@on_an_engine
async def test_a_file_is_looked_for_in_a_container_that_does_not_run(tmp_path: Path) -> None:
    engine = Engine(SOCKET)
    made = await engine.create(f"gyre-look-{tmp_path.name}-{os.getpid()}", {"Image": IMAGE, "Entrypoint": [SHELL]})
    try:
        assert [await engine.has(made, each) for each in (SHELL, "/no/such")] == [True, False]
    finally:
        await engine.remove(made)
        await engine.close()
