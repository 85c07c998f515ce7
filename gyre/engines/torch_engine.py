"""Any transformers causal LM as a rollout engine: continuous batching in a worker thread behind an asyncio front.

    engine = TorchEngine(AutoModelForCausalLM.from_pretrained(folder), version=0)
    generation = await engine.generate(GenerateRequest("r1", (5, 6, 7), Sampling(max_tokens=32), cache_key="x1"))

The thread alone touches the model and the caches; everything asked of it runs between two decode steps.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from math import prod
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import get_layer_types_and_kwargs

from gyre.engines.batch import Row
from gyre.engines.blocks import KvBlocks, KvSequence
from gyre.engines.decoder import Decoder
from gyre.engines.handoff import Pins, Sources, apart
from gyre.engines.kv import packed_segment, unpacked_segment
from gyre.engines.port import (
    EngineError,
    EngineUnavailable,
    GenerateRequest,
    Generation,
    Health,
    KvRefused,
    RequestRefused,
    check_context,
)
from gyre.engines.prefix import Kept
from gyre.engines.weights import Parameters
from schemas.base import pack_ints

Work = Callable[[], None]
Result = TypeVar("Result")


class TorchEngine:
    """An `Engine` over a model object, which belongs to the engine from here on.

    Args:
        model: a transformers causal LM with full attention, on the CPU.
        version: policy version of its weights.
        rows: most requests that decode together; further ones wait.
        prefix_tokens: most tokens of finished sequences whose keys and values are kept for later calls.
        chunk_tokens: most prompt tokens computed between two decode steps.

    Raises:
        EngineError: the model is not float32, or has layers other than full attention.
    """

    def __init__(
        self, model: Any, *, version: int = 0, rows: int = 32, prefix_tokens: int = 16_384, chunk_tokens: int = 1024
    ) -> None:
        _check_model(model)
        model.eval()
        self._parameters = Parameters(model)
        self._decoder = Decoder(model, version, rows, prefix_tokens, chunk_tokens, perf_counter)
        self._context = int(model.config.max_position_embeddings)
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._kv_shape = _kv_shape(model.config)
        self._token_bytes = 2 * 4 * prod(self._kv_shape)
        self._pins = Pins()
        self._sources = Sources()
        self._flights: dict[str, Row] = {}
        self._down = ""
        self._changing = asyncio.Lock()
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="gyre-torch-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._decoder.version

    @property
    def running(self) -> int:
        """See `Engine`."""
        return len(self._flights)

    @property
    def context(self) -> int:
        """See `Engine`."""
        return self._context

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Generator`."""
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: send the request to another one")
        if request.request_id in self._flights:
            raise RequestRefused(f"request_id: {request.request_id!r} is in flight already; use a new id")
        check_context(request, self._context, self._vocabulary)
        row = self._flights[request.request_id] = Row(request, perf_counter())
        self._inbox.put(lambda: self._decoder.add(row))
        try:
            return await asyncio.wrap_future(row.future)
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._decoder.abort(lambda other: other is row))
            raise
        finally:
            del self._flights[request.request_id]

    async def abort(self, request_id: str) -> None:
        """See `Generator`."""
        if (row := self._flights.get(request_id)) is not None and self._down != "closed":
            await self._between_steps(lambda: self._decoder.abort(lambda other: other is row))

    async def abort_all(self) -> None:
        """See `Generator`."""
        if self._down != "closed":
            await self._between_steps(self._abort_all)

    async def health(self) -> Health:
        """See `Generator`."""
        return Health(self.version, self.running, self._context, admitting=not self._down)

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        """See `Generator`. Only what lies in memory is collected between two steps; it is packed beside them."""
        self._check_up()

        def collect() -> tuple[int, list[Kept]]:
            return self._decoder.version, self._decoder.kept(key)

        found, kept = await self._between_steps(collect)
        _check_version(found, version)
        size = self._token_bytes * sum(len(each.tokens) for each in kept)
        packed = await apart(size, lambda: tuple(_packed(each) for each in kept if len(each.tokens)))
        return KvBlocks(key, version, packed)

    async def release_kv(self, key: str) -> None:
        """See `Generator`."""
        if not self._down:
            await self._between_steps(lambda: self._decoder.release(key))
        self._pins.drop(key)

    async def take_kv(self, key: str, source: str) -> int:
        """See `Generator`."""
        return await self._sources.fetch(self, key, source)

    async def import_kv(self, blocks: KvBlocks) -> int:
        """See `Engine`."""
        self._check_up()
        for sequence in blocks.sequences:
            if sequence.shape != self._kv_shape:
                raise KvRefused(f"shape {sequence.shape}: this model's is {self._kv_shape}; compute it anew")
        size = self._token_bytes * blocks.tokens
        kept = await apart(size, lambda: [_unpacked(blocks.key, each) for each in blocks.sequences])

        def keep() -> None:
            _check_version(self._decoder.version, blocks.version)
            self._decoder.keep(kept)

        await self._between_steps(keep)
        return blocks.tokens

    async def pin_kv(self, keys: Collection[str]) -> None:
        """See `Engine`."""
        self._check_up()
        held = set(keys)
        await self._between_steps(lambda: self._decoder.pin(held))
        self._pins.hold(held)

    async def unpinned(self) -> None:
        """See `Engine`."""
        if not self._down:
            self._pins.narrow(await self._between_steps(self._decoder.kept_keys))
        await self._pins.wait()

    async def close(self) -> None:
        """See `Generator`."""
        self._down = "closed"  # nothing is put in the inbox after this but what follows
        self._inbox.put(self._abort_all)
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        await self._sources.close()

    async def load(self, weights: Path | Mapping[str, Tensor], version: int) -> None:
        """See `Engine`. Decoding goes on while the new weights are read."""
        async with self._changing:
            if self._down:
                raise EngineUnavailable(f"engine is {self._down}: resume it to give it weights")
            await self._take(weights, version)

    async def release(self) -> None:
        """See `Engine`."""
        async with self._changing:
            if self._down == "closed":
                return
            self._down = "released"
            await self._between_steps(self._free)
            self._pins.clear()

    async def resume(self, weights: Path | Mapping[str, Tensor], version: int) -> None:
        """See `Engine`."""
        async with self._changing:
            if self._down == "closed":
                raise EngineUnavailable("engine is closed: make a new one")
            await self._take(weights, version)
            self._down = ""

    async def _take(self, weights: Path | Mapping[str, Tensor], version: int) -> None:
        values = await asyncio.to_thread(self._parameters.prepare, weights)

        def swap() -> None:
            self._parameters.swap(values)
            self._decoder.restart(version)

        await self._between_steps(swap)
        self._pins.clear()

    def _check_up(self) -> None:
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: it has no cache")

    def _abort_all(self) -> None:
        self._decoder.abort(lambda _: True)

    def _free(self) -> None:
        self._abort_all()
        self._decoder.forget()
        self._parameters.free()

    async def _between_steps(self, work: Callable[[], Result]) -> Result:
        """Run on the worker thread, after the step under way. Raises EngineUnavailable once there is none."""
        if self._down == "closed":
            raise EngineUnavailable("engine is closed: make a new one")
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(work())
            except EngineError as error:  # a refusal, which touched nothing
                done.set_exception(error)
            except Exception as error:  # noqa: BLE001  the caller gets it, and so do the rows, which it may have lost
                self._decoder.fail(error)
                done.set_exception(error)

        self._inbox.put(run)
        return await asyncio.wrap_future(done)

    def _work(self) -> None:
        """The worker thread: what was asked, then a step, until closed."""
        while True:
            try:
                work = self._inbox.get(block=not self._decoder.busy)
            except Empty:
                work = self._decoder.step
            if work is None:
                return
            self._do(work)

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  the thread's edge: its rows end with the reason
            self._decoder.fail(error)


def _check_model(model: Any) -> None:
    if model.dtype != torch.float32:
        raise EngineError(f"model: dtype {model.dtype}; load it with dtype=torch.float32")
    kinds = set(get_layer_types_and_kwargs(model.config)[0])
    if kinds != {"full_attention"}:
        raise EngineError(f"model: layers of kind {sorted(kinds)}; only full_attention is served")


def _kv_shape(config: Any) -> tuple[int, int, int]:
    """(layers, key-value heads, dimension of a head) of what a model caches."""
    heads = int(config.num_attention_heads)
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(config.num_hidden_layers), int(getattr(config, "num_key_value_heads", None) or heads), int(dim)


def _check_version(found: int, asked: int) -> None:
    if found != asked:
        raise KvRefused(f"version {asked}: this engine has version {found}; compute it anew")


def _packed(kept: Kept) -> KvSequence:
    shape, data = packed_segment(kept.segment)
    return KvSequence(pack_ints(kept.tokens.tolist()), shape, data)


def _unpacked(key: str, sequence: KvSequence) -> Kept:
    tokens = np.frombuffer(sequence.token_ids, "<i4").astype(np.int64)
    return Kept(key, tokens, unpacked_segment(sequence.shape, sequence.tokens, sequence.data))
