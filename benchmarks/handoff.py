"""Going on with a conversation at another engine: its cache handed over, against its context computed again.

    python benchmarks/handoff.py [--model nano|smollm2|FOLDER] [--tokens 256,1024] [--rounds 5] [--json]

Two idle engines of the same weights behind HTTP. Each round a fresh context is computed at the first one; then the
second goes on from it, once after `take_kv` and once without, in turns. The time is that to the first further token,
the handoff included; medians of the rounds count.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from aiohttp import web

from gyre.engines.port import GenerateRequest, Sampling
from gyre.engines.remote import RemoteEngine
from gyre.engines.torch_engine import TorchEngine
from gyre.models.load import find_model, load_model
from services.engine_server import engine_app, engine_runner


@dataclass(frozen=True)
class Served:
    """An engine behind HTTP."""

    client: RemoteEngine
    url: str


@asynccontextmanager
async def served(model: Any) -> AsyncIterator[Served]:
    """It, until the end of the `with`."""
    engine = TorchEngine(model)
    runner = engine_runner(engine_app(engine, lambda: True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with RemoteEngine(url) as client:
        yield Served(client, url)
    await runner.cleanup()
    await engine.close()


async def first_token(here: Served, ids: tuple[int, ...], key: str, source: str = "") -> tuple[float, int]:
    """Seconds until the next token of a context, fetched from `source` before if there is one; tokens reused."""
    start = perf_counter()
    if source:
        await here.client.take_kv(key, source)
    found = await here.client.generate(GenerateRequest(f"{key}{source}", ids, Sampling(max_tokens=1), key))
    return perf_counter() - start, found.cached_tokens


async def measure(here: Served, there: Served, tokens: int, rounds: int, vocabulary: int) -> dict[str, float]:
    """Medians in milliseconds over the rounds; the first only warms up."""
    handed, anew, reused = [], [], []
    for turn in range(rounds + 1):
        random = torch.Generator().manual_seed(turn)
        for way, source in ((handed, there.url), (anew, "")):
            ids = tuple(torch.randint(vocabulary, (tokens,), generator=random).tolist())
            key = f"{tokens}-{turn}-{bool(source)}"
            said = await there.client.generate(GenerateRequest(key, ids, Sampling(max_tokens=4), key))
            seconds, cached = await first_token(here, (*ids, *said.output_ids), key, source)
            way.append(seconds)
            reused += [cached] * bool(source)
    return {
        "tokens": tokens,
        "handoff_ms": 1e3 * median(handed[1:]),
        "recompute_ms": 1e3 * median(anew[1:]),
        "reused_tokens": median(reused[1:]),
    }


async def run(options: argparse.Namespace) -> list[dict[str, float]]:
    """Each length in turn."""
    folder = find_model(options.model)
    models = [load_model(folder)[0] for _ in range(2)]
    vocabulary = int(models[0].config.vocab_size)
    async with AsyncExitStack() as stack:
        there, here = [await stack.enter_async_context(served(model)) for model in models]
        lengths = [int(each) for each in options.tokens.split(",")]
        return [await measure(here, there, each, options.rounds, vocabulary) for each in lengths]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--tokens", default="256,1024", help="lengths of the context, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = asyncio.run(run(options))
    if options.json:
        print(json.dumps({"model": options.model, "results": results}))
        return
    for found in results:
        print(
            f"{found['tokens']:.0f} tokens: {found['handoff_ms']:.1f} ms with a handoff ({found['reused_tokens']:.0f} "
            f"tokens reused), {found['recompute_ms']:.1f} ms computed again"
        )


if __name__ == "__main__":
    main()
