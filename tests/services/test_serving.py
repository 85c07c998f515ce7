"""Those who read a run keep its server together: none of them stops it under another, and none is left behind."""

import asyncio
import fcntl
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.attach_host import hosted
from services.importing import bring
from services.place import Note
from services.presence import alive
from services.serving import LOG
from services.source import messages, open_source
from tests.services.recorded import SMALL

PATIENCE_SECONDS = 60
"""Of a test whose reader would wait for ever otherwise."""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await bring(SMALL, tmp_path)
    return tmp_path / "small"


@contextmanager
def supervised(folder: Path) -> Iterator[None]:
    """As its `gyre` keeps it."""
    with (folder / "control.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def serves(folder: Path) -> bool:
    return alive(json.loads((folder / "nats/server.json").read_bytes())["pid"])


async def test_who_reads_on_keeps_the_server_that_another_one_had_started(folder: Path) -> None:
    first, later = open_source("small", folder.parent), open_source("small", folder.parent)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await first.__aenter__()
        source = await later.__aenter__()
        head = await source.ev.head()
        await first.__aexit__(None, None, None)  # it had started the server
        assert serves(folder)
        assert [stored.sequence async for stored in messages(source.ev)] == list(range(1, head + 1))
        await later.__aexit__(None, None, None)
    assert not serves(folder)


async def test_a_log_is_read_to_its_end_though_its_run_ends_meanwhile(folder: Path) -> None:
    server = Note.read(folder).server(folder)
    assert server is not None
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with supervised(folder):
            opened = open_source("small", folder.parent)
            source = await opened.__aenter__()
            head = await source.ev.head()
            async with aclosing(messages(source.ev)) as log:
                assert (await anext(log)).sequence == 1
            await asyncio.to_thread(server.stop)
        assert [stored.sequence async for stored in messages(source.ev)] == list(range(1, head + 1))
        await opened.__aexit__(None, None, None)
    assert not serves(folder)


async def test_a_server_that_somebody_else_had_started_is_left_to_them(folder: Path) -> None:
    server = Note.read(folder).server(folder)
    assert server is not None
    await asyncio.to_thread(server.start)
    try:
        async with open_source("small", folder.parent):
            pass
        assert serves(folder)
    finally:
        await asyncio.to_thread(server.stop)


async def test_whoever_resumes_a_run_keeps_the_server_that_was_started_for_those_who_read(folder: Path) -> None:
    async with open_source("small", folder.parent):
        lock = supervised(folder)
        lock.__enter__()
    assert serves(folder)
    lock.__exit__(None, None, None)
    async with open_source("small", folder.parent):
        pass
    assert not serves(folder)


class Told(logging.Handler):
    """Hears what is warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard, self.lines = asyncio.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.heard.set()


async def test_a_server_that_cannot_be_started_once_is_started_later(folder: Path) -> None:
    server = Note.read(folder).server(folder)
    assert server is not None
    await asyncio.to_thread(server.start)
    told = Told()
    LOG.addHandler(told)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with supervised(folder):
                opened = hosted(folder)
                host = await opened.__aenter__()
                await asyncio.to_thread(server.stop)
                taken = socket.create_server(("127.0.0.1", urlsplit(server.url).port or 0))
            await told.heard.wait()
            assert not host.at_rest.is_set()
            taken.close()
            await host.at_rest.wait()
            assert await host.bus.ev.head() > 0
            await opened.__aexit__(None, None, None)
    finally:
        LOG.removeHandler(told)
    assert len(told.lines) == 1
    assert f"port {urlsplit(server.url).port}: in use" in told.lines[0]
    assert not serves(folder)


async def test_the_server_of_a_run_that_was_removed_is_not_made_anew(folder: Path) -> None:
    told = Told()
    LOG.addHandler(told)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), open_source("small", folder.parent):
            (folder / "run.json").unlink()
            server = Note("small", "", "always").server(folder)
            assert server is not None
            await asyncio.to_thread(server.stop)
            await told.heard.wait()
            assert "holds no run" in told.lines[0]
            assert not serves(folder)
    finally:
        LOG.removeHandler(told)
