"""A log or a disk that takes no more ends a call in the protocol's words, never in mid-stream."""

import json
from typing import Any

import pytest

from schemas.calls import RouteAssigned
from tests.proxy.rig import RUN, SYSTEM, TASK, Cell, Client, Rig


async def trouble(client: Client, token: str) -> dict[str, Any]:
    """The error that is the last event of a stream which began and ended as it should."""
    async with client.start(token, [SYSTEM, TASK], stream=True) as response:
        assert response.status == 200
        first, *_, last = [line for line in (await response.read()).split(b"\n\n") if line]
    assert "choices" in json.loads(first.removeprefix(b"data: "))
    error: dict[str, Any] = json.loads(last.removeprefix(b"data: "))["error"]
    return error


def lose_disk(rig: Rig) -> None:
    """No blob can be put any more: where the blobs' folder should be is a file."""
    folder = rig.bus("test").blobs.folder
    assert not folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"")


@pytest.mark.parametrize("stream", ["ev", "calls"])
async def test_a_full_log_is_told_in_the_stream(rig: Rig, stream: str) -> None:
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    getattr(rig.broker.run(RUN), stream).max_bytes = 0
    async with rig.proxy() as client:
        error = await trouble(client, token)
    assert error["type"] == "server_error"
    assert error["message"].endswith("cannot be recorded, the log is full")
    assert await rig.records() == []
    assert len(await rig.said(RouteAssigned)) == (stream == "calls")


@pytest.mark.parametrize(("inline_bytes", "routes"), [(0, 0), (500, 1)])
async def test_a_blob_that_cannot_be_put_is_told_in_the_stream(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, inline_bytes: int, routes: int
) -> None:
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    lose_disk(rig)
    monkeypatch.setattr("bus.codec.CLAIM_CHECK_BYTES", inline_bytes)
    async with rig.proxy() as client:
        error = await trouble(client, token)
    assert error["type"] == "server_error"
    assert "cannot be recorded, the run folder fails: " in error["message"]
    assert await rig.records() == []
    assert len(await rig.said(RouteAssigned)) == routes
