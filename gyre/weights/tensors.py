"""The transport by tensors in requests to SGLang's servers: whatever file a cell has, its server need not see it."""

import asyncio
from functools import partial
from pathlib import Path

from gyre.engines.port import Engine
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.files import Shapes
from gyre.engines.sglang.tensors import Source, hand_over
from gyre.weights.buckets import cut
from gyre.weights.layout import read_layout
from gyre.weights.port import give
from gyre.weights.sending import received


async def give_tensors(engine: Engine, file: Path, version: int, *, resume: bool) -> None:
    """A `Give`: by tensors, or by the file where that breaks off. Raises WeightsUnusable, EngineError."""
    if await received(engine, partial(_send, file), version, "tensors") is not None:
        await give(engine, file, version, resume=resume)


async def _send(file: Path, client: Client, model: Shapes, version: int) -> None:
    await hand_over(await asyncio.to_thread(_source, file), client, model, version)


def _source(file: Path) -> Source:
    parts = read_layout(file).parts
    return Source(
        {each.name: each.shape for each in parts},
        lambda most: [(each.bucket, partial(each.read, file)) for each in cut(parts, most)],
    )
