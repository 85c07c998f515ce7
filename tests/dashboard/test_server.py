"""The HTTP face: who is let in, what is refused, what every answer says of itself; and the page as one file."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner
from yarl import URL

from gyre.errors import GyreError
from services.cli.app import app
from services.dashboard import page
from services.dashboard.guard import POLICY, Guard, Unguarded, is_loopback
from services.dashboard.runs import Runs, UnknownRun
from services.dashboard.server import served
from tests.dashboard.conftest import Told
from tests.dashboard.tale import HOSTILE
from tests.services.recorded import SMALL
from tests.services.tampered import Change, Message, event, tampered

TOKEN = "0123456789abcdef"
ASSETS = Path(page.__file__).parent / "assets"


@asynccontextmanager
async def empty(
    folder: Path, token: str | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Callable[..., object]]:
    """A dashboard over a folder without runs; gives what asks it."""
    async with (
        served(Runs(None, folder), Guard(host, token), "127.0.0.1", 0) as url,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client,
    ):

        async def ask(path: str, method: str = "GET", **headers: str) -> aiohttp.ClientResponse:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, url + path, headers=told, allow_redirects=False)

        yield ask


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:9", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
async def test_only_names_of_this_machine_are_answered(tmp_path: Path, host: str, status: int) -> None:
    async with empty(tmp_path) as ask:
        assert (await ask("api/runs", Host=host)).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed(tmp_path: Path, method: str) -> None:
    async with empty(tmp_path) as ask:
        assert (await ask("api/runs", method)).status == 405


async def test_every_answer_carries_the_pages_own_rules(tmp_path: Path) -> None:
    async with empty(tmp_path) as ask:
        for path in ("", "api/runs", "assets/app.js", "nothing", "api/runs/none/live"):
            answer = await ask(path)
            assert answer.headers["Content-Security-Policy"] == POLICY, path
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_without_the_token_nothing_is_said_but_health(tmp_path: Path) -> None:
    async with empty(tmp_path, TOKEN) as ask:
        for path in ("", "api/runs", "assets/app.js", "?token=wrong", "api/runs?token="):
            assert (await ask(path)).status == 401, path
        assert (await ask("", Cookie=f"gyre_dashboard={TOKEN}")).status == 401
        assert (await ask("api/runs", Authorization=f"Bearer {TOKEN}")).status == 200
        assert await (await ask("health")).json() == {"ok": True}


@pytest.mark.parametrize("header", [b"Cookie: gyre_dashboard=", b"Authorization: Bearer "])
async def test_a_token_that_is_no_text_is_a_wrong_one(tmp_path: Path, header: bytes) -> None:
    async with served(Runs(None, tmp_path), Guard("127.0.0.1", TOKEN), "127.0.0.1", 0) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n" + header + b"\xff\xfe\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_the_token_is_exchanged_for_a_cookie_that_is_not_the_token(tmp_path: Path) -> None:
    async with empty(tmp_path, TOKEN) as ask:
        welcome = await ask(f"?token={TOKEN}&x=1")
        assert (welcome.status, welcome.headers["Location"]) == (303, "/?x=1")
        cookie = welcome.headers["Set-Cookie"]
        assert TOKEN not in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
        assert (await ask("", Cookie=cookie.partition(";")[0])).status == 200


def test_a_network_is_not_served_without_a_token_that_cannot_be_guessed() -> None:
    with pytest.raises(Unguarded, match=r"^--host 0\.0\.0\.0: .*--token"):
        Guard("0.0.0.0", None)
    with pytest.raises(Unguarded, match="16 or more"):
        Guard("0.0.0.0", "short")
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


async def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    async with empty(tmp_path) as ask:
        for path in (
            "api/runs/..%2F..%2Fetc/overview",
            "api/runs/none/tree/x",
            "assets/..%2Fpage.py",
            "assets/none.js",
        ):
            answer = await ask(path)
            assert answer.status == 404, path
            assert set(await answer.json()) == {"error"}
    with pytest.raises(UnknownRun, match="neither an archive"):
        Runs("nothing", tmp_path)


@pytest.mark.asyncio(loop_scope="session")
async def test_parameters_that_cannot_be_are_refused_by_name(told: Told) -> None:
    async with aiohttp.ClientSession() as client:
        for path, named in (
            ("overview?at=x", "at"), ("overview?at=-1", "at"), ("overview?at=nan", "at"), ("executions?page=x", "page"),
            ("executions?sort=no", "sort"), ("tasks?page=1e9", "page"), ("sample/x0-0/x0-0-c1?from=-1", "from"),
        ):  # fmt: skip
            answer = await client.get(f"{told.archived}api/runs/tale/{path}")
            assert (answer.status, (await answer.json())["error"].partition(" ")[0]) == (400, named), path


@pytest.mark.asyncio(loop_scope="session")
async def test_news_come_section_by_section_and_only_what_changed(told: Told) -> None:
    async with aiohttp.ClientSession() as client, client.get(f"{told.archived}api/runs/tale/live") as stream:
        assert stream.content_type == "text/event-stream"
        names = []
        async for line in stream.content:
            if line.startswith(b"event: "):
                names.append(line.decode().split()[1])
            if names.count("counters") and names[-1] == "shown":
                break
        assert {"head", "cells", "levels", "batch", "steps", "ends", "groups", "tasks"} <= set(names)


@pytest.mark.asyncio(loop_scope="session")
async def test_an_exported_page_holds_no_markup_of_others_and_refers_to_nothing(exported: tuple[str, int]) -> None:
    text, kept = exported
    assert kept == 48
    assert HOSTILE not in text
    assert text.count("<script") == 2
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text) == []
    assert "token_digest" not in text
    answers = json.loads(re.search(r'<script type="application/json" id="answers">(.*?)</script>', text, re.DOTALL)[1])
    assert HOSTILE in json.dumps(answers).replace('\\"', '"').replace('\\\\"', '"')


async def test_a_run_that_is_looked_at_is_not_let_go(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"r{number}").mkdir()
        (tmp_path / f"r{number}" / "run.json").write_text("{}")
    runs = Runs(None, tmp_path)
    looked_at = runs.watch("r0")
    looked_at.viewers = 1
    others = [runs.watch(f"r{number}") for number in range(1, 8)]
    assert runs.watch("r0") is looked_at
    assert runs.watch("r7") is others[-1]
    assert runs.watch("r1") is not others[0]
    await runs.close()


async def test_a_run_whose_rows_are_lost_says_so_and_is_read_anew_when_asked_again(tmp_path: Path) -> None:
    runs = Runs(str(SMALL), tmp_path)
    lost = runs.watch("small")
    lost.store.close()
    async with asyncio.timeout(20):
        with pytest.raises(GyreError, match="closed database"):
            await lost.opened()
        with pytest.raises(GyreError, match="closed database"):
            await lost.sections()
        while (again := runs.watch("small")) is lost:
            await asyncio.sleep(0.01)
        await again.caught_up()
        assert json.loads((await again.sections())["head"])["problem"] == ""
        await again.opened()
        again.store.close()  # while it is shown: nothing of it is read any more
        with pytest.raises(GyreError, match="closed database"):
            await again.sections()
        while runs.watch("small") is again:
            await asyncio.sleep(0.01)
    await runs.close()


def no_date(ev: list[Message], _: list[Message]) -> None:
    for _, commit in ev:
        commit["time"] += 10**21


def no_row(ev: list[Message], _: list[Message]) -> None:
    event(ev, "BatchOpened", 1)["step"] = 2**64 - 1


@pytest.mark.parametrize(("change", "problem"), [(no_date, ""), (no_row, "too large")])
async def test_numbers_that_no_row_and_no_date_takes_are_trouble_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, problem: str
) -> None:
    monkeypatch.setattr("services.dashboard.watch.AGAIN_SECONDS", 1.0)
    async with tampered(SMALL, tmp_path, change):
        runs = Runs(str(tmp_path / "tampered.jsonl.zst"), tmp_path)
        watch = runs.watch("tampered")
        async with asyncio.timeout(30):
            await watch.caught_up()
            assert problem in json.loads((await watch.sections())["head"])["problem"]
            while json.loads((await watch.sections())["head"])["state"] != "archive":
                await asyncio.sleep(0.05)
        await runs.close()


def test_every_asset_is_named_and_every_name_is_an_asset() -> None:
    assert {path.name for path in ASSETS.iterdir()} == page.ASSETS | {"index.html"}


def test_modules_need_only_those_before_them_and_share_no_name() -> None:
    seen: set[str] = set()
    names: dict[str, str] = {}
    for module in page.MODULES:
        text = (ASSETS / module).read_text()
        assert set(re.findall(r'from "\./(.*?)"', text)) <= seen, module
        seen.add(module)
        for name in re.findall(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", text, re.MULTILINE):
            assert name not in names, f"{name} is in {module} and {names.get(name)}"
            names[name] = module


def test_scripts_never_read_text_as_markup() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
    )
    assert [path.name for path in ASSETS.glob("*.js") if forbidden.search(path.read_text())] == []
    assert re.findall(r"\son\w+=|style=|<script(?! type=\"module\" src=)", (ASSETS / "index.html").read_text()) == []


@pytest.mark.asyncio(loop_scope="session")
async def test_the_command_serves_until_it_is_told_to_stop(told: Told) -> None:
    command = (sys.executable, "-m", "services.cli", "dashboard", str(told.archive), "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    async with aiohttp.ClientSession() as client:
        stream = await client.get(f"{url}api/runs/tale/live")
        assert await stream.content.readline() == b"event: head\n"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["dashboard", str(SMALL), "--port", str(port)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"--port {port}: another program listens there; choose another, or 0 for any\n"


def test_the_commands_say_what_to_do(tmp_path: Path) -> None:
    for arguments, said in (
        (("dashboard", "--host", "0.0.0.0"), "--token"),
        (("dashboard", "nothing"), "neither an archive"),
        (("export-page", "nothing", "-o", str(tmp_path / "p.html")), "neither an archive nor a run"),
    ):
        result = CliRunner().invoke(app, arguments, env={"GYRE_DASHBOARD_TOKEN": ""})
        assert result.exit_code == 1
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


COMES_AND_GOES = """
import os, sys
while True:
    for change in (lambda run: open(run + "/run.json", "w").close(), lambda run: os.unlink(run + "/run.json")):
        for number in range(200):
            change(f"{sys.argv[1]}/{number}")
"""


def test_runs_that_are_removed_while_they_are_listed_are_left_out(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/run.json").touch()
    with subprocess.Popen([sys.executable, "-c", COMES_AND_GOES, str(tmp_path)]) as busy:
        try:
            for _ in range(100):
                assert "kept" in {each["run"] for each in Runs(None, tmp_path).listed()}
        finally:
            busy.kill()
