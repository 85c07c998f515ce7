"""What the HTTP form adds: a gate, clear refusals, and nothing lost on the wire."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer, unused_port
from aiohttp.web import Application, Request

from gyre.engines.port import (
    EngineFailed,
    EngineUnavailable,
    GenerateRequest,
    Generation,
    RequestRefused,
    Sampling,
)
from gyre.engines.remote import RemoteEngine
from gyre.engines.scripted import Line, ScriptedEngine, replay
from gyre.engines.wire import GenerateBody
from schemas.calls import VersionSpan
from services.engine_server import engine_app

Client = TestClient[Request, Application]
ASK = GenerateRequest("a", (1, 2, 3), Sampling(max_tokens=3, seed=2**40), "x", (9,))


class Gate:
    """A gate that a test opens and shuts."""

    def __init__(self) -> None:
        self.open = True

    def __call__(self) -> bool:
        return self.open


class Broken(ScriptedEngine):
    """An engine whose computation breaks."""

    async def generate(self, request: GenerateRequest) -> Generation:
        raise EngineFailed("out of memory")


def float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(GenerateBody.of(ASK).model_dump_json()) | fields).encode()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def client(gate: Gate) -> AsyncIterator[Client]:
    engine = ScriptedEngine(replay([Line((7, 8, 9), (-0.1, -1e-7, -30.3))] * 2), version=4)
    async with TestClient(TestServer(engine_app(engine, gate))) as client:
        yield client


async def test_ids_logprobs_and_versions_come_back_bit_for_bit(client: Client) -> None:
    async with RemoteEngine(str(client.make_url(""))) as remote:
        generation = await remote.generate(ASK)
    assert generation.output_ids == (7, 8, 9)
    assert generation.logprobs == tuple(float32(x) for x in (-0.1, -1e-7, -30.3))
    assert generation.versions == (VersionSpan(version=4, tokens=3),)
    assert generation.finish == "stop"


async def test_a_request_survives_the_wire_whole() -> None:
    assert GenerateBody.model_validate_json(GenerateBody.of(ASK).model_dump_json()).request() == ASK


async def test_a_shut_gate_answers_draining_and_lets_aborts_through(client: Client, gate: Gate) -> None:
    gate.open = False
    response = await client.post("/generate", data=GenerateBody.of(ASK).model_dump_json())
    assert response.status == 503
    assert (await response.json())["error"] == "draining"
    assert (await client.post("/abort", json={"request_id": None})).status == 200
    async with RemoteEngine(str(client.make_url(""))) as remote:
        assert not (await remote.health()).admitting
        with pytest.raises(EngineUnavailable, match="admits no requests"):
            await remote.generate(ASK)
        gate.open = True
        assert (await remote.health()).admitting
        await remote.generate(ASK)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "body: Invalid JSON"),
        (b'{"request_id": "a"}', "input_ids: Field required"),
        (changed(input_ids="AQI="), "multiple of four"),
        (changed(surprise=1), "surprise: "),
    ],
)
async def test_a_malformed_body_is_refused_in_one_line_that_names_the_field(
    client: Client, body: bytes, said: str
) -> None:
    response = await client.post("/generate", data=body)
    answer = await response.json()
    assert (response.status, answer["error"]) == (400, "refused")
    assert said in answer["detail"]
    assert "\n" not in answer["detail"]


async def test_an_engine_that_breaks_says_so_at_the_client() -> None:
    async with (
        TestServer(engine_app(Broken(replay([])), lambda: True)) as server,
        RemoteEngine(str(server.make_url(""))) as remote,
    ):
        with pytest.raises(EngineFailed, match="out of memory"):
            await remote.generate(ASK)


async def test_a_script_without_a_line_left_refuses(client: Client) -> None:
    async with RemoteEngine(str(client.make_url(""))) as remote:
        for _ in range(2):
            await remote.generate(ASK)
        with pytest.raises(RequestRefused, match="no line left"):
            await remote.generate(ASK)


async def test_an_engine_that_is_not_there_is_unavailable() -> None:
    async with RemoteEngine(f"http://127.0.0.1:{unused_port()}") as remote:
        with pytest.raises(EngineUnavailable, match=r"engine at http://127\.0\.0\.1"):
            await remote.generate(ASK)


async def test_the_scripts_pace_holds_a_generation_and_an_abort_does_not_wait_for_it() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    engine = ScriptedEngine(replay([Line((7, 8))]), pace=never)
    pending = asyncio.ensure_future(engine.generate(ASK))
    await asyncio.sleep(0)
    assert engine.running == 1
    await engine.abort("a")
    assert (await pending).finish == "abort"
