"""`gyre users`: what each may do, and a configuration that a server of one's own takes."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bus import credentials, users
from bus.errors import Denied
from bus.jetstream import Bus
from bus.server import NatsServer
from services.cli.app import app
from services.place import Note

RUNNER = CliRunner()


def test_it_tells_what_each_user_may_do(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    Note("demo", "nats://127.0.0.1:1", "always").write(tmp_path / "demo")
    shown = RUNNER.invoke(app, ["users", "demo", "--runs", str(tmp_path)]).stdout
    assert "\nproxy\n" in shown
    assert "  publishes  call.demo.*\n" in shown
    table = json.loads(RUNNER.invoke(app, ["users", "--any-run", "--json"]).stdout)
    assert set(table) == set(users.USERS)
    assert "hint.*.heartbeat.scheduler" in table["cell"]["deny"]


def test_rights_of_a_run_that_is_not_there_are_not_told(tmp_path: Path) -> None:
    refused = RUNNER.invoke(app, ["users", "nobody", "--runs", str(tmp_path)])
    said = f"nobody: no run in {tmp_path}; `gyre runs` lists them\n"
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", said)


@pytest.mark.parametrize("words", [[], ["demo", "--any-run"]])
def test_a_run_or_any_run_but_not_both(words: list[str]) -> None:
    refused = RUNNER.invoke(app, ["users", *words])
    assert (refused.exit_code, refused.stderr) == (2, "users: name a run, or say --any-run\n")


async def test_a_server_takes_the_written_users_and_a_rotation_shuts_the_old_ones_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert RUNNER.invoke(app, ["users", "--any-run", "--out", str(out)]).exit_code == 0
    first = (out / "users.conf").read_text()
    assert RUNNER.invoke(app, ["users", "--any-run", "--out", str(out)]).exit_code == 0
    assert (out / "users.conf").read_text() == first
    assert {stat.S_IMODE(each.stat().st_mode) for each in (*out.glob("env/*"), out / "users.conf")} == {0o600}
    said = dict(line.split("=") for line in (out / "env/reader.env").read_text().splitlines())
    server = NatsServer(tmp_path / "nats", "laptop", authorization=lambda: first).start()
    try:
        kept = tmp_path / "kept"
        credentials.keep(kept, credentials.Login("", "provisioner", credentials.password(out, "provisioner")))
        await (await Bus.connect(server.url, "one", "control", "one", kept, create=True)).close()
        url = server.url.replace("//", f"//{said['GYRE_NATS_USER']}:{said['GYRE_NATS_PASSWORD']}@")
        await (await Bus.connect(url, "one", "reader", "one", tmp_path)).close()
        assert RUNNER.invoke(app, ["users", "--any-run", "--out", str(out), "--rotate"]).exit_code == 0
        server.stop()
        server = NatsServer(tmp_path / "nats", "laptop", authorization=(out / "users.conf").read_text).start()
        with pytest.raises(Denied):
            await Bus.connect(
                server.url.replace("//", f"//reader:{said['GYRE_NATS_PASSWORD']}@"), "one", "reader", "one", tmp_path
            )
    finally:
        server.stop()


async def test_passwords_of_a_live_run_are_renewed_under_its_services(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    server = credentials.server_of(folder, "one", "laptop").start()
    try:
        Note("one", server.url, "laptop").write(folder)
        bus = await Bus.connect(server.url, "one", "control", "one", folder, create=True)
        old = credentials.password(folder, "control")
        done = RUNNER.invoke(app, ["users", "one", "--rotate", "--runs", str(tmp_path)])
        assert done.exit_code == 0, done.stderr
        assert credentials.password(folder, "control") != old
        server.start()  # as whatever supervises the run does
        assert await bus.ev.head() == 0
        await bus.close()
    finally:
        server.stop()


def test_a_server_elsewhere_is_not_rotated_from_here(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    Note("one", "nats://elsewhere:4222", "always").write(folder)
    refused = RUNNER.invoke(app, ["users", "one", "--rotate", "--runs", str(tmp_path)])
    assert refused.exit_code == 1
    assert refused.stderr == "run one: its server is not its own; write its users anew with --out DIR --rotate\n"
