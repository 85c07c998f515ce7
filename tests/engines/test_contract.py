"""What every engine does, over the torch engine, the scripted and the modelled one, and each of them behind HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.test_utils import unused_port
from aiohttp.web import TCPSite

from gyre.engines.modelled import ModelledEngine, Pace
from gyre.engines.port import (
    ContextOverflow,
    Engine,
    EngineUnavailable,
    GenerateRequest,
    Generator,
    RequestRefused,
    Sampling,
    WeightsRefused,
)
from gyre.engines.remote import RemoteEngine
from gyre.engines.scripted import Line, ScriptedEngine
from gyre.engines.torch_engine import TorchEngine
from services.engine_server import engine_app, engine_runner

CONTEXT = 4096
PROMPT = tuple(range(1, 40))


def counting(request: GenerateRequest) -> Line:
    """An answer that goes on for as long as it may: the positions of its tokens, modulo 97."""
    start = len(request.input_ids)
    return Line(tuple((start + i) % 97 for i in range(request.sampling.max_tokens)))


def local(kind: str, llama: Callable[..., Any]) -> Engine:
    if kind == "modelled":
        return ModelledEngine(range(1, 90), Pace(token_seconds=3e-3, idle_gain=0.4), rows=8, context=CONTEXT)
    return TorchEngine(llama(0)) if kind == "torch" else ScriptedEngine(counting, context=CONTEXT)


@asynccontextmanager
async def served(engine: Generator) -> AsyncIterator[RemoteEngine]:
    runner = engine_runner(engine_app(engine, lambda: True))
    await runner.setup()
    port = unused_port()
    await TCPSite(runner, "127.0.0.1", port).start()
    async with RemoteEngine(f"http://127.0.0.1:{port}/") as remote:
        yield remote
    await runner.cleanup()


@pytest.fixture(params=["torch", "scripted", "modelled"])
async def engine(request: pytest.FixtureRequest, llama: Callable[..., Any]) -> AsyncIterator[Engine]:
    engine = local(request.param, llama)
    yield engine
    await engine.close()


@pytest.fixture(params=["here", "over HTTP"])
async def generator(request: pytest.FixtureRequest, engine: Engine) -> AsyncIterator[Generator]:
    if request.param == "here":
        yield engine
        return
    async with served(engine) as remote:
        yield remote


def ask(
    name: str, prompt: tuple[int, ...] = PROMPT, *, key: str = "x", stop: tuple[int, ...] = (), **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(name, prompt, Sampling(**{"max_tokens": 8, "temperature": 0.0} | sampling), key, stop)


def endless(name: str) -> GenerateRequest:
    return ask(name, max_tokens=CONTEXT - len(PROMPT))


async def until_running(generator: Generator, count: int) -> None:
    while (await generator.health()).running != count:
        await asyncio.sleep(0)


async def test_a_generation_ends_at_max_tokens_with_a_logprob_and_a_version_a_token(
    generator: Generator,
) -> None:
    generation = await generator.generate(ask("a", max_tokens=5, temperature=1.0))
    assert generation.finish == "length"
    assert len(generation.output_ids) == len(generation.logprobs) == 5
    assert [(span.version, span.tokens) for span in generation.versions] == [(0, 5)]
    assert all(logprob <= 0 for logprob in generation.logprobs)
    assert generation.queue_seconds >= 0
    assert generation.engine_seconds >= 0


async def test_a_stop_token_ends_the_generation_and_is_its_last_token(generator: Generator) -> None:
    free = (await generator.generate(ask("a"))).output_ids
    stop = free[3]
    generation = await generator.generate(ask("b", stop=(96, stop)))
    assert generation.output_ids == free[: free.index(stop) + 1]
    assert generation.finish == "stop"


async def test_a_stop_token_at_the_last_allowed_place_is_a_stop(generator: Generator) -> None:
    free = (await generator.generate(ask("a", max_tokens=1))).output_ids
    assert (await generator.generate(ask("b", max_tokens=1, stop=free))).finish == "stop"


async def test_a_call_that_extends_an_earlier_one_reuses_all_but_its_last_token(generator: Generator) -> None:
    first = await generator.generate(ask("a"))
    assert first.cached_tokens == 0
    second = await generator.generate(ask("b", (*PROMPT, *first.output_ids, 7, 8)))
    assert second.cached_tokens in {len(PROMPT) + 7, len(PROMPT) + 8}


async def test_the_same_seed_draws_the_same_tokens(generator: Generator) -> None:
    drawn = [(await generator.generate(ask(f"r{i}", temperature=1.0, seed=3))).output_ids for i in range(2)]
    assert drawn[0] == drawn[1]


async def test_an_abort_returns_what_there_is(generator: Generator) -> None:
    pending = asyncio.ensure_future(generator.generate(endless("a")))
    other = asyncio.ensure_future(generator.generate(endless("a1")))
    await until_running(generator, 2)
    await generator.abort("a")
    generation = await pending
    assert generation.finish == "abort"
    assert len(generation.output_ids) == len(generation.logprobs) == sum(span.tokens for span in generation.versions)
    assert (await generator.health()).running == 1  # "a" is a prefix of the other's id, and no more than that
    await generator.abort("a1")
    assert (await other).finish == "abort"
    assert (await generator.health()).running == 0


async def test_an_abort_of_what_is_not_in_flight_changes_nothing(generator: Generator) -> None:
    await generator.abort("nobody")
    await generator.abort_all()
    assert (await generator.generate(ask("nobody"))).finish == "length"


async def test_abort_all_ends_every_request(generator: Generator) -> None:
    pending = [asyncio.ensure_future(generator.generate(endless(f"r{i}"))) for i in range(3)]
    await until_running(generator, 3)
    await generator.abort_all()
    assert [(await one).finish for one in pending] == ["abort"] * 3


async def test_a_cancelled_call_aborts_its_request(generator: Generator) -> None:
    pending = asyncio.ensure_future(generator.generate(endless("a")))
    await until_running(generator, 1)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    await until_running(generator, 0)


async def test_a_request_beyond_the_context_is_refused_with_both_numbers(generator: Generator) -> None:
    with pytest.raises(ContextOverflow, match="4097 tokens > 4096 maximum") as refused:
        await generator.generate(ask("a", max_tokens=CONTEXT - len(PROMPT) + 1))
    assert (refused.value.tokens, refused.value.maximum) == (4097, 4096)


async def test_an_id_in_flight_cannot_be_used_again_until_it_is_done(generator: Generator) -> None:
    pending = asyncio.ensure_future(generator.generate(endless("a")))
    await until_running(generator, 1)
    with pytest.raises(RequestRefused, match="in flight"):
        await generator.generate(ask("a"))
    await generator.abort("a")
    await pending
    assert (await generator.generate(ask("a"))).finish == "length"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(wrong: dict[str, float], field: str) -> None:
    with pytest.raises(RequestRefused, match=f"^{field}: "):
        ask("a", **wrong)


async def test_new_weights_serve_under_their_version_and_nothing_cached_survives(
    engine: Engine, llama: Callable[..., Any]
) -> None:
    await engine.generate(ask("a"))
    await engine.load(llama(1).state_dict(), 7)
    generation = await engine.generate(ask("b"))
    assert engine.version == 7
    assert [span.version for span in generation.versions] == [7]
    assert generation.cached_tokens == 0


async def test_a_request_in_flight_goes_on_under_new_weights(engine: Engine, llama: Callable[..., Any]) -> None:
    pending = asyncio.ensure_future(engine.generate(ask("a", max_tokens=300)))
    await asyncio.sleep(0)
    await engine.load(llama(1).state_dict(), 1)
    generation = await pending
    assert generation.finish == "length"
    assert generation.versions[-1].version == 1
    assert sum(span.tokens for span in generation.versions) == 300


async def test_a_released_engine_aborts_and_refuses_until_it_is_resumed(
    engine: Engine, llama: Callable[..., Any]
) -> None:
    pending = asyncio.ensure_future(engine.generate(endless("a")))
    await asyncio.sleep(0)
    await engine.release()
    assert (await pending).finish == "abort"
    with pytest.raises(EngineUnavailable, match="released"):
        await engine.generate(ask("b"))
    with pytest.raises(EngineUnavailable, match="released"):
        await engine.load(llama(1).state_dict(), 1)
    assert not (await engine.health()).admitting
    await engine.resume(llama(1).state_dict(), 2)
    assert (await engine.generate(ask("c"))).versions[0].version == 2


async def test_a_closed_engine_ends_what_is_in_flight_and_refuses_more(engine: Engine) -> None:
    pending = asyncio.ensure_future(engine.generate(endless("a")))
    await asyncio.sleep(0)
    await engine.close()
    assert (await pending).finish == "abort"
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.generate(ask("b"))
    await engine.close()


async def test_weights_that_do_not_fit_change_nothing(llama: Callable[..., Any], tmp_path: Any) -> None:
    engine = TorchEngine(llama(0))
    before = (await engine.generate(ask("a"))).output_ids
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0")
    wrong = llama(1).state_dict()
    short = {name: value for name, value in wrong.items() if name != "model.norm.weight"}
    for weights, said in (
        (tmp_path / "torn.safetensors", "cannot be read"),
        (tmp_path / "none.safetensors", "cannot be read"),
        (short, "'model.norm.weight' is missing"),
        (wrong | {"extra": wrong["model.norm.weight"]}, "'extra'"),
        (wrong | {"model.norm.weight": wrong["model.norm.weight"][:5]}, r"shape \(5,\), the model needs \(32,\)"),
    ):
        with pytest.raises(WeightsRefused, match=said):
            await engine.load(weights, 1)
    assert engine.version == 0
    assert (await engine.generate(ask("b"))).output_ids == before
    await engine.close()
