"""A URL where something listens that is no NATS server: one line, exit code 1, and nothing is left behind."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bus.errors import Unavailable
from bus.jetstream import Bus
from services import setup
from services.cli.app import app


async def _silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side has had enough."""
    with contextlib.suppress(OSError):
        await reader.read()
    await _hang_up(writer)


async def _http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await _hang_up(writer)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.fixture(params=[_silence, _http], ids=["silent", "http"])
async def url(request: pytest.FixtureRequest) -> AsyncGenerator[str]:
    async with await asyncio.start_server(request.param, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_what_is_no_nats_server_is_named_within_patience(url: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=rf"^url {url}: no NATS server answers \(.+\); start one or correct the URL$"):
        await Bus.connect(url, "r", "tester", "one", tmp_path, patience_seconds=1.0)


async def test_a_run_is_not_begun_where_no_nats_server_answers(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "OPEN_SECONDS", 1.0)
    train = ["train", "/dev/null", "--set", f"bus.url={url}", "--set", "tasks.train=words:2:train"]
    result = await asyncio.to_thread(CliRunner().invoke, app, train)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"url {url}: no NATS server answers (")
    assert result.stderr.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []
