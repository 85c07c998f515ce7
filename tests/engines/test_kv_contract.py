"""What every engine does with the cache of an execution that moves: the torch engine and its scripted twin, over HTTP.

A source and a destination, as two cells are: the destination is told to take what the source keeps.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gyre.engines import remote
from gyre.engines.blocks import KvBlocks, KvSequence
from gyre.engines.port import Engine, EngineUnavailable, Generator, KvRefused
from gyre.engines.remote import RemoteEngine
from gyre.engines.scripted import ScriptedEngine, replay
from gyre.engines.torch_engine import TorchEngine
from tests.engines.test_contract import PROMPT, ask, local, served, until_running

KEY = "x"


@dataclass
class Pair:
    """Two engines of the same weights, each behind HTTP."""

    source: Engine
    destination: Engine
    url: str
    far: Generator
    """The source, as another process sees it."""
    near: Generator
    """The destination, as asked here or over HTTP."""


@pytest.fixture(params=["torch", "scripted", "modelled"])
async def pair(request: pytest.FixtureRequest, llama: Callable[..., Any]) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        engines = [local(request.param, llama) for _ in range(2)]
        remotes = [await stack.enter_async_context(served(engine)) for engine in engines]
        yield Pair(engines[0], engines[1], remotes[0]._url, remotes[0], remotes[1])
        for engine in engines:
            await engine.close()


async def continued(engine: Generator, first: tuple[int, ...]) -> int:
    """Cached tokens of a call that goes on from the prompt and what was said."""
    return (await engine.generate(ask("next", (*PROMPT, *first, 7, 8)))).cached_tokens


@pytest.mark.parametrize("way", ["here", "over HTTP"])
async def test_a_cache_that_was_taken_serves_the_execution_where_it_moved(pair: Pair, way: str) -> None:
    first = await pair.source.generate(ask("a"))
    taker = pair.near if way == "over HTTP" else pair.destination
    taken = await taker.take_kv(KEY, pair.url)
    assert taken >= len(PROMPT) + 7
    assert await continued(pair.destination, first.output_ids) == taken


@pytest.mark.parametrize("pair", ["torch"], indirect=True)  # which waits for no acknowledgement
async def test_a_cache_comes_however_long_it_takes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await pair.source.generate(ask("a"))
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 1e-9)
    taken = await pair.near.take_kv(KEY, pair.url)
    assert await continued(pair.destination, first.output_ids) == taken


async def test_what_was_taken_is_let_go_of_at_the_source(pair: Pair) -> None:
    first = await pair.source.generate(ask("a"))
    await pair.source.pin_kv({KEY})
    await pair.near.take_kv(KEY, pair.url)
    await pair.source.unpinned()
    assert (await pair.far.export_kv(KEY, 0)).sequences == ()
    assert await pair.near.take_kv(KEY, pair.url) == 0
    assert await continued(pair.source, first.output_ids) == 0


async def test_a_request_that_was_cut_goes_on_as_if_it_had_never_moved(pair: Pair) -> None:
    whole = (await pair.destination.generate(ask("w", key="w", max_tokens=400, temperature=1.0, seed=3))).output_ids
    cutting = asyncio.ensure_future(pair.source.generate(ask("a", max_tokens=400, temperature=1.0, seed=3)))
    await until_running(pair.source, 1)
    await pair.source.generate(ask("beside it", key="y", max_tokens=5))
    await pair.source.abort("a")
    cut = await cutting
    kept = len(cut.output_ids)
    assert (cut.finish, kept > 0) == ("abort", True)
    taken = await pair.near.take_kv(KEY, pair.url)
    rest = await pair.near.generate(
        ask("b", (*PROMPT, *cut.output_ids), max_tokens=400 - kept, temperature=1.0, seed=3)
    )
    assert (*cut.output_ids, *rest.output_ids) == whole
    assert rest.cached_tokens == min(taken, len(PROMPT) + kept - 1)


async def test_a_cache_of_other_weights_is_refused_and_let_go_of(pair: Pair, llama: Callable[..., Any]) -> None:
    first = await pair.source.generate(ask("a"))
    await pair.source.pin_kv({KEY})
    await pair.destination.load(llama(1).state_dict(), 1)
    with pytest.raises(KvRefused, match="version 1"):
        await pair.near.take_kv(KEY, pair.url)
    await pair.source.unpinned()
    assert await continued(pair.destination, first.output_ids) == 0
    assert (await pair.far.export_kv(KEY, 0)).sequences == ()


async def test_new_weights_at_the_destination_refuse_what_was_sent_before(
    pair: Pair, llama: Callable[..., Any]
) -> None:
    first = await pair.source.generate(ask("a"))
    blocks = await pair.far.export_kv(KEY, 0)
    await pair.destination.load(llama(1).state_dict(), 1)
    with pytest.raises(KvRefused, match="version 0"):
        await pair.destination.import_kv(blocks)
    assert await continued(pair.destination, first.output_ids) == 0


async def test_nothing_kept_is_nothing_taken_and_no_error(pair: Pair) -> None:
    assert await pair.near.take_kv("nobody", pair.url) == 0
    await pair.far.release_kv("nobody")


async def test_a_released_engine_neither_gives_nor_takes(pair: Pair) -> None:
    await pair.source.generate(ask("a"))
    await pair.destination.release()
    with pytest.raises(EngineUnavailable, match="released"):
        await pair.near.take_kv(KEY, pair.url)
    assert (await pair.far.export_kv(KEY, 0)).tokens > 0
    await pair.source.release()
    with pytest.raises(EngineUnavailable, match="released"):
        await pair.far.export_kv(KEY, 0)


async def test_a_source_that_is_not_there_is_unavailable(pair: Pair) -> None:
    with pytest.raises(EngineUnavailable, match="engine at"):
        await pair.near.take_kv(KEY, "http://127.0.0.1:9")


async def test_a_pin_ends_when_everything_under_its_keys_was_taken(pair: Pair) -> None:
    await pair.source.generate(ask("a"))
    await pair.source.generate(ask("b", key="y"))
    await pair.source.pin_kv({KEY, "y", "nothing is kept here"})
    waiting = asyncio.ensure_future(pair.source.unpinned())
    await pair.near.take_kv(KEY, pair.url)
    assert not waiting.done()
    await pair.near.take_kv("y", pair.url)
    await waiting


async def test_releasing_an_engine_ends_its_pins(pair: Pair) -> None:
    await pair.source.generate(ask("a"))
    await pair.source.pin_kv({KEY})
    waiting = asyncio.ensure_future(pair.source.unpinned())
    await pair.source.release()
    await waiting


async def test_a_pinned_sequence_outlives_a_full_store(llama: Callable[..., Any]) -> None:
    engine = TorchEngine(llama(0), prefix_tokens=len(PROMPT) + 20)
    first = await engine.generate(ask("a"))
    await engine.pin_kv({KEY})
    await engine.generate(ask("b", tuple(range(40, 80)), key="y"))
    assert (await engine.export_kv(KEY, 0)).tokens == len(PROMPT) + len(first.output_ids) - 1
    await engine.close()


async def test_blocks_of_another_models_shape_are_refused(llama: Callable[..., Any]) -> None:
    engine = TorchEngine(llama(0))
    foreign = KvSequence(b"\1\0\0\0", (1, 1, 1), b"\0" * 8)
    with pytest.raises(KvRefused, match=r"shape \(1, 1, 1\): this model's is \(2, 2, 8\)"):
        await engine.import_kv(KvBlocks(KEY, 0, (foreign,)))
    await engine.close()


async def test_keys_and_values_come_back_bit_for_bit(llama: Callable[..., Any]) -> None:
    engine = TorchEngine(llama(0))
    await engine.generate(ask("a"))
    blocks = await engine.export_kv(KEY, 0)
    found = KvBlocks.unpacked(blocks.packed())
    assert [bytes(each.data) for each in found.sequences] == [bytes(each.data) for each in blocks.sequences]
    assert replace(found, sequences=()) == replace(blocks, sequences=())
    assert [(each.token_ids, each.shape) for each in found.sequences] == [
        (each.token_ids, each.shape) for each in blocks.sequences
    ]
    await engine.close()


class Slow(ScriptedEngine):
    """An engine whose caches never come."""

    def __init__(self) -> None:
        super().__init__(replay(()))
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.let_go.set()
        return KvBlocks(key, version, ())


async def test_who_asked_for_a_cache_and_hangs_up_ends_the_fetching_everywhere() -> None:
    slow = Slow()
    async with served(slow) as source, served(ScriptedEngine(replay(()))) as destination:
        taking = asyncio.create_task(destination.take_kv(KEY, source._url))
        await slow.asked.wait()
        taking.cancel()
        await slow.let_go.wait()


@pytest.mark.parametrize("cut", [0, 3, 20, -1])
def test_blocks_cut_on_their_way_are_refused(cut: int) -> None:
    body = KvBlocks(KEY, 0, (KvSequence(b"\1\0\0\0", (1, 1, 1), b"\0" * 8),)).packed()
    with pytest.raises(ValueError):
        KvBlocks.unpacked(body[:cut])


async def test_a_source_that_sends_what_cannot_be_read_is_refused() -> None:
    async def torn(_: web.Request) -> web.Response:
        return web.Response(body=b"\7\0\0\0{}")

    app = web.Application()
    app.router.add_post("/kv/export", torn)
    async with TestServer(app) as server, RemoteEngine(str(server.make_url(""))) as remote:
        with pytest.raises(KvRefused, match="cannot be read"):
            await remote.export_kv(KEY, 0)
