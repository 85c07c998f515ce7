"""An engine that waits instead of computing: what is said is drawn, how long it takes is modelled. Imports no torch.

A request for n tokens takes n times `Pace.token_seconds`, less at a cell that has room (by its load when the request
came); the last token ends the turn, so that whoever asks chooses how long a call lasts. A request that is aborted
returns the tokens that its time would have given, and goes on elsewhere from there. Reading a prompt takes no time.
"""

import asyncio
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from gyre.engines.handoff import Remembered, fetch
from gyre.engines.port import (
    EngineUnavailable,
    GenerateRequest,
    Generation,
    WeightsRefused,
    packed,
)
from gyre.engines.spans import add_span
from schemas.calls import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

_GREEDY = 1e-5  # temperature below which the port calls sampling greedy
_SPREAD = 0x9E3779B97F4A7C15
_KEPT = 8  # histories remembered for each place


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, wall seconds."""

    token_seconds: float
    """One output token while every place is taken."""
    idle_gain: float
    """Share of that which a call saves at an empty engine, in [0, 1)."""
    load_seconds: float = 0.0
    release_seconds: float = 0.0
    resume_seconds: float = 0.0

    def call_seconds(self, tokens: int, load: float) -> float:
        """`tokens * token_seconds * (1 - idle_gain * (1 - load))`; load is requests in flight, this one too, per place.

        Above 1 the engine is overfull and slower still.
        """
        return tokens * self.token_seconds * (1.0 - self.idle_gain * (1.0 - load))


@dataclass(slots=True)
class _Flight:
    """One request that waits."""

    began: float
    """Monotonic seconds."""
    seconds: float
    tokens: int
    counted: int = 0
    """Tokens whose version is settled."""
    versions: list[VersionSpan] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self, version: int, tokens: int) -> None:
        """All up to this token were said under this version."""
        add_span(self.versions, version, tokens - self.counted)
        self.counted = tokens

    def progress(self, now: float) -> int:
        """Whole tokens by now."""
        return min(self.tokens, int(self.tokens * (now - self.began) / self.seconds))


class ModelledEngine(Remembered):
    """Implements `gyre.engines.port.Engine`.

    Args:
        words: token ids to draw from, all alike; none of them may end an answer.
        pace: how long things take.
        rows: places, C_e: the load is requests in flight per place.
        context: longest prompt + output, tokens.
    """

    def __init__(self, words: Sequence[int], pace: Pace, *, rows: int, context: int) -> None:
        super().__init__(0, context)
        self._words = tuple(words)
        self._pace = pace
        self._rows = rows
        self._flights: dict[str, _Flight] = {}

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Generator`."""
        self._check(request)
        line = self._line(request)
        prompt = packed(request.input_ids)
        cached = self._cached(request.cache_key, prompt)
        seconds = self._pace.call_seconds(len(line), (len(self._flights) + 1) / self._rows)
        flight = self._flights[request.request_id] = _Flight(time.monotonic(), seconds, len(line))
        try:
            whole = await self._waited(flight)
        finally:
            del self._flights[request.request_id]
        elapsed = time.monotonic() - flight.began
        flight.settle(self._version, len(line) if whole else flight.progress(flight.began + elapsed))
        said = line[: flight.counted]
        self._remember(request.cache_key, prompt + struct.pack(f"<{len(said)}i", *said))
        stopped = bool(said) and said[-1] in request.stop_token_ids
        return Generation(
            output_ids=said,
            logprobs=self._logprobs(request, said),
            versions=tuple(flight.versions),
            finish="stop" if stopped else "length" if whole else "abort",
            cached_tokens=cached,
            queue_seconds=0.0,
            engine_seconds=elapsed,
        )

    async def abort(self, request_id: str) -> None:
        """See `Generator`."""
        if flight := self._flights.get(request_id):
            flight.aborted.set()

    async def abort_all(self) -> None:
        """See `Generator`."""
        for flight in self._flights.values():
            flight.aborted.set()

    async def take_kv(self, key: str, source: str) -> int:
        """See `Generator`."""
        return await fetch(self, key, source)

    async def close(self) -> None:
        """See `Generator`."""
        await self.abort_all()
        self._down = "closed"

    async def load(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """See `Engine`; nothing is computed with them, so any will do that can be read."""
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: resume it to give it weights")
        await self._take(weights, version, self._pace.load_seconds)

    async def release(self) -> None:
        """See `Engine`."""
        await self.abort_all()
        self._down = "released"
        self._forget()
        await asyncio.sleep(self._pace.release_seconds)

    async def resume(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """See `Engine`."""
        await self._take(weights, version, self._pace.resume_seconds)
        self._down = ""

    async def _take(self, weights: "Path | Mapping[str, Tensor]", version: int, seconds: float) -> None:
        _refuse_unreadable(weights)
        await asyncio.sleep(seconds)
        now = time.monotonic()
        for flight in self._flights.values():
            flight.settle(self._version, flight.progress(now))
        self._version = version
        self._forget()

    async def _waited(self, flight: _Flight) -> bool:
        """Whether it was left to finish."""
        try:
            async with asyncio.timeout(flight.seconds):
                await flight.aborted.wait()
        except TimeoutError:
            return True
        return False

    def _line(self, request: GenerateRequest) -> tuple[int, ...]:
        """All that will be said if nobody interrupts: up to a stop token, and one at the end where there are any."""
        sampling, stops = request.sampling, request.stop_token_ids
        start, count = len(request.input_ids), len(self._words)
        seed = crc32(request.request_id.encode()) if sampling.seed is None else sampling.seed
        seed = 0 if sampling.temperature < _GREEDY else seed
        drawn = [self._words[_mixed(seed, start + index) % count] for index in range(sampling.max_tokens)]
        if stops:
            drawn[-1] = drawn[-1] if drawn[-1] in stops else stops[0]
        end = next((index for index, token in enumerate(drawn) if token in stops), len(drawn) - 1)
        return tuple(drawn[: end + 1])

    def _logprobs(self, request: GenerateRequest, said: Sequence[int]) -> tuple[float, ...]:
        """Nats: all words were alike; a greedy token, and the one that ends a turn in its last place, were certain."""
        certain = request.sampling.temperature < _GREEDY
        alike = 0.0 if certain else float(np.float32(-log(len(self._words))))
        return tuple(0.0 if token in request.stop_token_ids else alike for token in said)

    def _cached(self, key: str, prompt: bytes) -> int:
        """Tokens of the prompt that an earlier call of this key had said or read; never its last one."""
        seen = self._seen.get(key, b"")
        both = min(len(seen), len(prompt) - 4)
        if not prompt.startswith(seen[:both]):
            left, right = np.frombuffer(seen[:both], "<i4"), np.frombuffer(prompt[:both], "<i4")
            return int(np.flatnonzero(left != right)[0])
        return both // 4

    def _remember(self, key: str, history: bytes) -> None:
        self._seen.pop(key, None)
        self._seen[key] = history
        if len(self._seen) > _KEPT * self._rows:
            self._seen.pop(next(iter(self._seen)))


def _mixed(seed: int, position: int) -> int:
    """A well-spread number of 32 bits that depends on (seed, position) alone."""
    mixed = ((seed + 1) * _SPREAD + position * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return mixed >> 32


def _refuse_unreadable(weights: "Path | Mapping[str, Tensor]") -> None:
    from safetensors import SafetensorError, safe_open

    if isinstance(weights, Path):
        try:
            with safe_open(weights, framework="numpy") as file:
                file.keys()
        except (OSError, SafetensorError) as error:
            raise WeightsRefused(f"weights: {weights} cannot be read as safetensors: {error}") from error
