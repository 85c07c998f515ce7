"""Two real SGLang servers that share a cache: an execution that moves finds its keys and values."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gyre.engines.port import KvRefused
from gyre.engines.sglang import cache
from gyre.engines.sglang.engine import SglangEngine
from tests.backends.conftest import managed
from tests.engines.test_contract import PROMPT, ask, served, until_running

pytestmark = pytest.mark.timeout(300)
KEY, PAGE = "x", cache.PAGE_TOKENS


@dataclass
class Pair:
    source: SglangEngine
    destination: SglangEngine
    url: str
    storage: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("kv")
    storage = cache.environment(folder)
    more = (*cache.arguments(), "--hicache-size=1", "--hicache-io-backend=direct", "--mem-fraction-static=0.3")
    engines = [SglangEngine(managed(model_folder, *more, **storage), model_folder, shared_cache=True) for _ in "ab"]
    weights = model_folder / "model.safetensors"
    await asyncio.gather(*(engine.resume(weights, 0) for engine in engines))
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(served(engines[0])))._url
        yield Pair(*engines, url, folder)
        for engine in engines:
            await engine.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_that_was_cut_goes_on_elsewhere_from_what_is_cached(pair: Pair) -> None:
    greedy = ask("whole", key="w", max_tokens=400)
    whole = (await pair.source.generate(greedy)).output_ids
    cutting = asyncio.ensure_future(pair.source.generate(ask("cut", max_tokens=400)))
    await until_running(pair.source, 1)
    await asyncio.sleep(0.2)
    await pair.source.abort("cut")
    cut = await cutting
    taken = await pair.destination.take_kv(KEY, pair.url)
    assert taken == len(PROMPT) + len(cut.output_ids)
    left = 400 - len(cut.output_ids)
    rest = await pair.destination.generate(ask("rest", (*PROMPT, *cut.output_ids), max_tokens=left))
    assert (*cut.output_ids, *rest.output_ids) == whole
    assert rest.cached_tokens >= taken - 2 * PAGE  # whole pages, but for the last token
    assert (await pair.source.export_kv(KEY, 0)).sequences == ()  # acknowledged


@pytest.mark.asyncio(loop_scope="module")
async def test_keys_and_values_of_other_weights_are_never_found(pair: Pair, llama: Callable[..., Any]) -> None:
    await pair.source.generate(ask("a", max_tokens=60))
    while not (pages := set(pair.storage.iterdir())):  # they are written behind the answer
        await asyncio.sleep(0.05)
    await pair.destination.load(llama(1).state_dict(), 1)
    with pytest.raises(KvRefused, match="version 1"):
        await pair.destination.take_kv(KEY, pair.url)
    assert (await pair.destination.generate(ask("b", max_tokens=60))).cached_tokens == 0
    assert not pages & set(pair.storage.iterdir())  # what nobody finds any more would only grow
