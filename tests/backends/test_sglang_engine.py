"""The engines' contract on a real SGLang server, and what is SGLang's own."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.engines.port import EngineFailed, EngineUnavailable, RequestRefused, WeightsRefused
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from tests.engines import test_contract as contract
from tests.engines.test_contract import PROMPT, ask, endless, generator, until_running  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(300)
OTHERWISE = {
    "test_the_same_seed_draws_the_same_tokens": "SGLang's deterministic sampling has no attention backend on the CPU",
    "test_weights_that_do_not_fit_change_nothing": "of the torch engine; SGLang's own is below",
}
globals().update({name: each for name, each in vars(contract).items() if name.startswith("test_")})
for name, reason in OTHERWISE.items():
    globals()[name] = pytest.mark.skip(reason=reason)(globals()[name])


async def test_log_probabilities_are_those_of_the_model(
    engine: SglangEngine, llama: Callable[..., Any], full_logprobs: Callable[..., Any]
) -> None:
    found = await engine.generate(ask("a", max_tokens=60, temperature=0.7))
    wanted = full_logprobs(llama(0), PROMPT, found, 0.7)
    assert max(abs(a - b) for a, b in zip(found.logprobs, wanted.tolist(), strict=True)) < 1e-4


async def test_a_seam_between_versions_continues_under_the_new_weights_alone(
    engine: SglangEngine, llama: Callable[..., Any], full_logprobs: Callable[..., Any]
) -> None:
    pending = asyncio.ensure_future(engine.generate(ask("a", max_tokens=1500, temperature=1.0)))
    await until_running(engine, 1)
    await asyncio.sleep(0.3)
    await engine.load(llama(1).state_dict(), 1)
    found = await pending
    assert [each.version for each in found.versions] == [0, 1]
    seam = found.versions[0].tokens
    for seed, part in ((0, slice(0, seam)), (1, slice(seam, None))):
        wanted = full_logprobs(llama(seed), PROMPT, found).tolist()[part]
        assert max(abs(a - b) for a, b in zip(found.logprobs[part], wanted, strict=True)) < 1e-3


async def test_the_end_token_of_the_model_ends_nothing_unless_it_is_asked_to(engine: SglangEngine) -> None:
    """The server ends at it whenever another stop token is given; here the tiny model's end token is 2."""
    drawn = await engine.generate(ask("a", max_tokens=400, temperature=3.0, stop=(96,)))
    inner = drawn.output_ids[:-1]
    assert drawn.finish in {"stop", "length"}
    assert (drawn.output_ids[-1] == 96) == (drawn.finish == "stop")
    assert 2 in inner or drawn.finish == "stop"


async def test_a_token_beyond_the_vocabulary_does_not_end_the_server(engine: SglangEngine) -> None:
    with pytest.raises(RequestRefused, match="below the vocabulary's 97"):
        await engine.generate(ask("a", (5, 9999)))
    assert (await engine.generate(ask("b"))).finish == "length"


@pytest.mark.parametrize("changed", [{"top_p": 0.9}, {"top_k": 5}])
async def test_what_it_cannot_record_exactly_is_refused(engine: SglangEngine, changed: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match="before they act"):
        await engine.generate(ask("a", temperature=1.0, **changed))


async def test_weights_that_do_not_fit_leave_the_old_ones(
    engine: SglangEngine, llama: Callable[..., Any], tmp_path: Path
) -> None:
    before = (await engine.generate(ask("a"))).output_ids
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0")
    wrong = llama(1).state_dict()
    short = {name: value for name, value in wrong.items() if name != "model.norm.weight"}
    for weights, said in (
        (tmp_path / "torn.safetensors", "cannot be read"),
        (short, "'model.norm.weight' is missing"),
        (wrong | {"extra": wrong["model.norm.weight"].clone()}, "'extra'"),
        (wrong | {"model.norm.weight": wrong["model.norm.weight"][:5]}, r"shape \(5,\), the model needs \(32,\)"),
    ):
        with pytest.raises(WeightsRefused, match=said):
            await engine.load(weights, 1)
    assert engine.version == 0
    assert (await engine.generate(ask("b"))).output_ids == before


async def test_weights_that_somebody_else_changed_are_noticed(
    engine: SglangEngine, server: RunningServer, llama: Callable[..., Any], model_folder: Path
) -> None:
    other = SglangEngine(server, model_folder, instance="other")
    await other.resume(llama(1).state_dict(), 5)
    with pytest.raises(EngineFailed, match="serves weights '5', not version 0"):
        await engine.generate(ask("a"))
    await other.close()


async def test_a_server_that_is_not_there_is_unavailable(model_folder: Path, llama: Callable[..., Any]) -> None:
    nobody = SglangEngine(RunningServer("http://127.0.0.1:9"), model_folder)
    with pytest.raises(EngineUnavailable, match="SGLang at"):
        await nobody.resume(llama(0).state_dict(), 0)
    await nobody.close()


async def test_requests_end_when_their_engine_is_told_to_move(engine: SglangEngine, server: RunningServer) -> None:
    """Many at once: each is cut, none is left on the server."""
    pending = [asyncio.ensure_future(engine.generate(endless(f"r{i}"))) for i in range(6)]
    await until_running(engine, 6)
    await engine.release()
    assert {(await each).finish for each in pending} == {"abort"}
    client = Client(server.url)
    await client.idle()
    await client.close()
