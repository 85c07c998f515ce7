"""The bad network strikes once, and only the request that it was told to."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.clients.faults import Faults, network


@pytest.fixture
async def line() -> AsyncIterator[tuple[Faults, str, list[str]]]:
    """Faults, their URL, and the bodies that came through."""
    came: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        came.append(await request.text())
        return web.Response(text=f"{request.path_qs} {request.headers['x-api-key']}")

    app = web.Application()
    app.router.add_post("/x/{token}/v1/messages", answer)
    async with TestServer(app) as server, network(str(server.make_url("")).rstrip("/")) as (faults, url):
        yield faults, url, came


async def ask(url: str, token: str, body: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/x/{token}/v1/messages?beta=true", data=body, headers={"x-api-key": token}) as found,
    ):
        return found.status, await found.text()


async def test_what_has_no_fault_passes_as_it_is(line: tuple[Faults, str, list[str]]) -> None:
    faults, url, came = line
    faults.plan("a", {"after": "made", "status": 503})
    assert await ask(url, "a", "start") == (200, "/x/a/v1/messages?beta=true a")
    assert await ask(url, "b", "made") == (200, "/x/b/v1/messages?beta=true b")
    assert (came, faults.struck) == (["start", "made"], set())


async def test_a_refused_request_never_arrives_and_the_next_one_does(line: tuple[Faults, str, list[str]]) -> None:
    faults, url, came = line
    faults.plan("a", {"after": "made", "status": 503})
    assert [(await ask(url, "a", "made"))[0] for _ in range(2)] == [503, 200]
    assert (came, faults.struck) == (["made"], {"a"})


async def test_a_dropped_request_arrives_and_its_answer_does_not(line: tuple[Faults, str, list[str]]) -> None:
    faults, url, came = line
    faults.plan("a", {"after": "made", "status": 0})
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(url, "a", "made")
    assert (await ask(url, "a", "made"))[0] == 200
    assert (came, faults.struck) == (["made", "made"], {"a"})
