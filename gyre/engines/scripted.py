"""An engine that says what it is told to: the public twin for tests of everything that talks to an engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.engines.handoff import Remembered, fetch
from gyre.engines.port import (
    EngineUnavailable,
    Finish,
    GenerateRequest,
    Generation,
    RequestRefused,
    packed,
)
from gyre.engines.spans import add_span
from schemas.base import ints, pack_ints
from schemas.calls import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Line:
    """What to answer: token ids, and their log-probabilities (nats; missing ones are 0: certain)."""

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


Script = Callable[[GenerateRequest], Line]
Pace = Callable[[], Awaitable[None]]


async def yield_once() -> None:
    """The default pace: let others run between two tokens."""
    await asyncio.sleep(0)


def replay(lines: Iterable[Line]) -> Script:
    """A script that gives these answers in the order of the calls; RequestRefused when none is left."""
    remaining = iter(lines)

    def script(request: GenerateRequest) -> Line:
        line = next(remaining, None)
        if line is None:
            raise RequestRefused(f"request {request.request_id!r}: the script has no line left; give it more lines")
        return line

    return script


@dataclass(slots=True)
class _Flight:
    """One request being answered."""

    request: GenerateRequest
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedEngine(Remembered):
    """Replays a script token by token, with an engine's manners.

    A line ends at max_tokens or at its first stop token; one that runs out ends with the request's first stop token, or
    as at max_tokens when there is none. Every token waits for `pace`, so that a test can hold a generation in flight;
    an abort does not wait.
    """

    def __init__(self, script: Script, *, context: int = 4096, version: int = 0, pace: Pace = yield_once) -> None:
        super().__init__(version, context)
        self._script = script
        self._pace = pace
        self._flights: dict[str, _Flight] = {}

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Generator`."""
        self._check(request)
        line = self._script(request)
        cached = _common_prefix(ints(self._seen.get(request.cache_key, b"")), list(request.input_ids)[:-1])
        flight = self._flights[request.request_id] = _Flight(request)
        try:
            finish = await self._speak(request, line, flight)
        finally:
            del self._flights[request.request_id]
        if finish != "abort":
            self._remember(flight)
        return Generation(
            tuple(flight.output_ids), tuple(flight.logprobs), tuple(flight.versions), finish, cached, 0.0, 0.0
        )

    async def abort(self, request_id: str) -> None:
        """See `Generator`."""
        if flight := self._flights.get(request_id):
            self._cut(flight)

    async def abort_all(self) -> None:
        """See `Generator`."""
        for flight in self._flights.values():
            self._cut(flight)

    async def take_kv(self, key: str, source: str) -> int:
        """See `Generator`."""
        return await fetch(self, key, source)

    async def close(self) -> None:
        """See `Generator`."""
        await self.abort_all()
        self._down = "closed"

    async def load(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """See `Engine`."""
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: resume it to give it weights")
        self._take(version)

    async def release(self) -> None:
        """See `Engine`."""
        await self.abort_all()
        self._down = "released"
        self._forget()

    async def resume(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """See `Engine`."""
        self._down = ""
        self._take(version)

    def _cut(self, flight: _Flight) -> None:
        flight.aborted.set()
        self._remember(flight)

    def _remember(self, flight: _Flight) -> None:
        self._seen[flight.request.cache_key] = packed(flight.request.input_ids) + pack_ints(flight.output_ids)

    def _take(self, version: int) -> None:
        self._version = version
        self._forget()

    async def _speak(self, request: GenerateRequest, line: Line, flight: _Flight) -> Finish:
        stops = request.stop_token_ids
        said = (*zip(line.output_ids, _padded(line), strict=True), *((stop, 0.0) for stop in stops[:1]))
        for token, logprob in said[: request.sampling.max_tokens]:
            if await self._aborted_before(flight):
                return "abort"
            flight.output_ids.append(token)
            flight.logprobs.append(logprob)
            add_span(flight.versions, self._version, 1)
            if token in stops:
                return "stop"
        return "length"

    async def _aborted_before(self, flight: _Flight) -> bool:
        """Wait for the pace; True as soon as the request is aborted."""
        paced, aborted = asyncio.ensure_future(self._pace()), asyncio.ensure_future(flight.aborted.wait())
        try:
            await asyncio.wait({paced, aborted}, return_when=asyncio.FIRST_COMPLETED)
            return flight.aborted.is_set()
        finally:
            paced.cancel()
            aborted.cancel()


def _padded(line: Line) -> tuple[float, ...]:
    return line.logprobs + (0.0,) * (len(line.output_ids) - len(line.logprobs))


def _common_prefix(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
