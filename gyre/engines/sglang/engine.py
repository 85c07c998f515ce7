"""A rollout engine over an SGLang server (0.5.23).

What the server does otherwise than the port asks, and what is done about it:

- It aborts every request whose id begins with the given one: ids have one length here.
- Weights wait for requests under way, or change under them with keys and values of the old ones: `load` cuts what is
  in flight, changes, and goes on from the partial output, so that each later token comes from the new weights alone.
- `ignore_eos` ignores every stop token: where there are any, a generation that ended at another one is gone on with.
- A token id beyond the vocabulary ends the server, as do a release under way and a resume of what was not released:
  none of them is sent.
- Log-probabilities are of the distribution before top-p and top-k: requests with either are refused.
- Cached prefixes carry no version, in shared storage least of all: each request is salted with its own.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from gyre.engines.blocks import KvBlocks
from gyre.engines.handoff import Remembered, Sources
from gyre.engines.port import (
    EngineError,
    EngineFailed,
    EngineUnavailable,
    Finish,
    GenerateRequest,
    Generation,
    Health,
    RequestRefused,
    WeightsRefused,
    check_context,
    packed,
)
from gyre.engines.sglang.client import ANSWER_SECONDS, Client
from gyre.engines.sglang.experts import SILENT, rows_of, shape_of
from gyre.engines.sglang.files import loadable, shapes_of
from gyre.engines.sglang.flight import Flight
from gyre.engines.sglang.memory import Memory
from gyre.engines.sglang.server import Server
from gyre.engines.sglang.session import Send, ServerStuck
from gyre.engines.sglang.wire import Generated
from schemas.base import pack_ints

if TYPE_CHECKING:
    from torch import Tensor

_AGAIN_SECONDS = 0.1


class SglangEngine(Remembered):
    """An `Engine`. It serves nothing before `resume`, which starts the server where it has to be started.

    Args:
        server: where it is.
        model: folder of the model that it serves, in Hugging Face format.
        instance: tells this engine's requests from those of other clients of the same server.
        shared_cache: whether the server keeps keys and values in storage that its peers read (hierarchical caching):
            then executions that move find theirs there; else they are computed anew.
        experts: whether to ask the server which experts its model took, for those who want to know. Of a prefix that
            came from shared storage it cannot tell.
    """

    def __init__(
        self,
        server: Server,
        model: Path,
        *,
        instance: str = "",
        shared_cache: bool = False,
        experts: bool = False,
    ) -> None:
        config = json.loads((model / "config.json").read_text())
        super().__init__(0, int(config["max_position_embeddings"]))
        self._vocabulary = int(config["vocab_size"])
        self._shapes = shapes_of(model)
        self._experts = shape_of(model) if experts else None
        self._server, self._client, self._instance, self._shared = server, Client(server.url), instance, shared_cache
        self._flights: dict[str, Flight] = {}
        self._numbers = count()
        self._memory = Memory(self._client)
        self._down = "released"
        self._half = False
        self._open = asyncio.Event()
        self._idle = asyncio.Condition()
        self._changing = asyncio.Lock()
        self._sources = Sources()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Generator`."""
        self._check(request)
        check_context(request, self._context, self._vocabulary)
        if request.sampling.top_p < 1 or request.sampling.top_k:
            raise RequestRefused("top_p, top_k: SGLang reports log-probabilities before they act; leave them out")
        began, flight = perf_counter(), Flight(request)
        self._flights[request.request_id] = flight
        try:
            finish = await self._answer(flight)
        finally:
            del self._flights[request.request_id]
        self._remember(flight)
        waited = max(0.0, perf_counter() - began - flight.engine_seconds)
        return Generation(
            tuple(flight.output_ids),
            tuple(flight.logprobs),
            tuple(flight.versions),
            finish,
            max(0, flight.cached),
            waited,
            flight.engine_seconds,
            routed_experts=b"".join(flight.experts) if flight.experts else None,
        )

    async def health(self) -> Health:
        """See `Generator`."""
        await self._server.hear(self._client)
        return await super().health()

    async def abort(self, request_id: str) -> None:
        """See `Generator`."""
        if flight := self._flights.get(request_id):
            await self._cut(flight)

    async def abort_all(self) -> None:
        """See `Generator`."""
        await asyncio.gather(*(self._cut(flight) for flight in tuple(self._flights.values())))

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        """See `Generator`: which tokens; their keys and values lie in the storage that the servers share, if any."""
        blocks = await super().export_kv(key, version)
        return blocks if self._shared else KvBlocks(key, version, ())

    async def take_kv(self, key: str, source: str) -> int:
        """See `Generator`."""
        return await self._sources.fetch(self, key, source)

    async def load(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """See `Engine`."""
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: resume it to give it weights")
        async with self._changing:
            await self._take(partial(self._from_disk, weights, version), version)

    async def release(self) -> None:
        """See `Engine`. Memory returns where the server was started with `--enable-memory-saver`.

        Raises:
            EngineError: it serves as before if its health says so; else it has to be resumed.
        """
        async with self._changing:
            if self._down == "closed" or not self._memory.held:
                return
            await self._fall_silent()
            await self._surely(self._memory.release())
            self._forget()

    async def resume(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """See `Engine`."""
        async with self._changing:
            await self._wake()
            await self._take(partial(self._from_disk, weights, version), version)
            self._down = ""

    async def receive(self, send: Send, version: int) -> None:
        """As `load`, or `resume` where it is released, by whatever sends in pieces (`gyre.engines.sglang.session`).

        Raises:
            EngineUnavailable, WeightsRefused: it did not come to it; it serves the weights that it had.
            EngineFailed: it broke off. Nothing is served before the next `load` or `resume`.
        """
        async with self._changing:
            if self._down:
                await self._wake()
            await self._take(partial(self._sent, send, version), version)
            self._down = ""

    async def close(self) -> None:
        """See `Generator`."""
        if self._down == "closed":
            return
        self._down = "closed"
        self._open.set()
        with contextlib.suppress(EngineError, TimeoutError):  # a server that ended has ended them too
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.abort_all()
                await self._quiet()
        if not await self._server.stop() and self._memory.released:  # whoever else uses it finds it as it was
            with contextlib.suppress(EngineError):
                await self._memory.resume()
        await self._sources.close()
        await self._client.close()

    async def _answer(self, flight: Flight) -> Finish:
        """Piece by piece, until it ends for a reason of its own."""
        while True:
            await self._open.wait()
            if flight.aborted or self._down:
                return "abort"
            piece = await self._piece(flight)
            reason = piece.meta_info.finish_reason
            if reason.type == "abort" and reason.status_code is not None:
                raise EngineFailed(f"SGLang gave up: {reason.message}")
            if reason.type == "stop" and flight.output_ids[-1] in flight.request.stop_token_ids:
                return "stop"
            if flight.left == 0:
                return "length"

    async def _piece(self, flight: Flight) -> Generated:
        flight.rid, version = self._rid(flight.request.request_id), self._version
        try:
            piece = await self._client.generate(self._body(flight))
        finally:
            flight.rid = ""
            async with self._idle:
                self._idle.notify_all()
        self._add_experts(flight, piece)
        flight.add(piece, version)
        return piece

    def _add_experts(self, flight: Flight, piece: Generated) -> None:
        if self._experts is None or flight.experts_from < 0 or not piece.output_ids:
            return
        stop = len(flight.request.input_ids) + len(flight.output_ids) + len(piece.output_ids) - 1
        unknown = piece.meta_info.cached_tokens if self._shared else 0
        positions = range(flight.experts_from, stop)
        flight.experts.append(rows_of(piece.meta_info.routed_experts, self._experts, positions, unknown))

    def _rid(self, request_id: str) -> str:
        """None is the beginning of another: all have one length."""
        return sha256(f"{self._instance}/{next(self._numbers)}/{request_id}".encode()).hexdigest()[:32]

    def _body(self, flight: Flight) -> dict[str, object]:
        sampling, stops = flight.request.sampling, flight.request.stop_token_ids
        drawn: dict[str, object] = {
            "max_new_tokens": flight.left,
            "temperature": 0.0 if flight.greedy else sampling.temperature,
            "ignore_eos": not stops,
            "stop_token_ids": list(stops),
            "no_stop_trim": True,
        }
        if sampling.seed is not None:
            drawn["sampling_seed"] = sampling.seed
        told = {} if self._experts is None or flight.experts_from < 0 else _telling(flight.experts_from)
        return told | {
            "rid": flight.rid,
            "input_ids": [*flight.request.input_ids, *flight.output_ids],
            "sampling_params": drawn,
            "return_logprob": True,
            "cache_salt": str(self._version),
        }

    async def _cut(self, flight: Flight) -> None:
        flight.aborted = True
        await self._end_piece(flight)

    async def _wake(self) -> None:
        """The server runs, and has what was released."""
        if self._down == "closed":
            raise EngineUnavailable("engine is closed")
        await self._server.start(self._client)
        await self._surely(self._memory.resume())
        if self._experts is not None and not await self._client.tells_experts():
            raise EngineFailed(f"SGLang at {self._client.url} {SILENT}")

    async def _fall_silent(self) -> None:
        """Refuse requests, and end what is under way; if that does not come about, serve as before."""
        before, self._down = self._down, "released"
        self._open.set()
        try:
            await self.abort_all()
            await self._cut_pieces()
        except (EngineError, asyncio.CancelledError):
            self._down = before
            if self._half:
                self._open.clear()
            raise

    async def _surely(self, change: Awaitable[None]) -> None:
        """Change the server's memory. Where that is left in doubt, a server of ours ends, and has none."""
        try:
            await change
        except EngineError:
            self._memory.held = not await self._server.stop()
            raise

    async def _take(self, change: Callable[[], Awaitable[None]], version: int) -> None:
        """Cut what is in flight, change the weights, and let it go on; not while they may be half of two versions."""
        self._open.clear()
        before, self._half = self._half, True
        try:
            await change()
            self._half = False
            self._version = version
            self._forget()
            if self._shared:  # it is salted with the version: what is left there is of no use, and would only grow
                await self._client.forget_shared()
        except (
            EngineUnavailable,
            WeightsRefused,
        ):  # nothing was changed; whatever else ends it, cancelling too, may have
            self._half = before
            raise
        finally:
            if not self._half:
                self._open.set()

    async def _from_disk(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        with loadable(weights, self._shapes) as folder:
            await self._cut_pieces()
            await self._client.load(str(folder), str(version))

    async def _sent(self, send: Send, version: int) -> None:
        await self._cut_pieces()
        try:
            await send(self._client, self._shapes, version)
        except ServerStuck:
            await self._server.stop()
            await self._server.start(self._client)
            raise

    async def _cut_pieces(self) -> None:
        await asyncio.gather(*(self._end_piece(flight) for flight in tuple(self._flights.values())))
        await self._quiet()
        await self._client.idle()  # what a client hung up on may still be ending

    async def _end_piece(self, flight: Flight) -> None:
        """Abort what is under way, again and again: the server ignores an abort that comes before its request does."""
        rid = flight.rid
        while rid and flight.rid == rid:
            await self._client.abort(rid)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_SECONDS), self._idle:
                    await self._idle.wait_for(lambda: flight.rid != rid)

    async def _quiet(self) -> None:
        """Until no piece is under way."""
        async with self._idle:
            await self._idle.wait_for(lambda: not any(flight.rid for flight in self._flights.values()))

    def _remember(self, flight: Flight) -> None:
        history = packed(flight.request.input_ids) + pack_ints(flight.output_ids)
        if flight.versions and flight.versions[-1].version == self._version:
            self._seen[flight.request.cache_key] = history


def _telling(first: int) -> dict[str, object]:
    return {"return_routed_experts": True, "routed_experts_start_len": first}
