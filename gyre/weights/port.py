"""What a transport of weights is: the core offers a version, and each engine's cell brings it into its engine.

Weights are named by the digest of their safetensors file, so whatever travels, and however often it is tried, an engine
gets those bytes or none. Every transport that has trouble ends at the run folder, where the weights lie durably before
the log names them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gyre.engines.port import Engine
from gyre.errors import GyreError
from schemas.refs import WeightsRef

Ask = Callable[[bytes], Awaitable[bytes]]
"""Put a question to the core's `answer`; raises `WeightsUnavailable`."""


class WeightsUnusable(GyreError):
    """What came, or was to be sent, is not what its name says: damaged, of another base, or no weights at all."""


class WeightsUnavailable(GyreError):
    """Not to be had by this way now: nobody answers, or nothing of that name is there."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What a version costs an engine's cell that has the version before."""

    sent: int
    """Bytes."""
    changed: float | None = None
    """Share of the values that differ, in [0, 1]; None where it was not looked at."""


class Weights(Protocol):
    """One cell's side of a transport."""

    async def offer(self, weights: WeightsRef, base: WeightsRef | None) -> Offered:
        """The core's: have these ready, also as changes of `base`. Before anyone is told; doing it again costs little.

        What cannot be had ready is logged: cells take what they find, and the run folder's file in the end.

        Raises:
            WeightsRefused: the file is not what its name says.
        """
        ...

    async def bring(self, engine: Engine, weights: WeightsRef, version: int, *, resume: bool) -> None:
        """Have the engine serve these: `Engine.resume` or `Engine.load`, whichever way they come.

        Raises:
            EngineError, GyreError: it does not, and serves nothing that is half of them.
        """
        ...

    async def answer(self, question: bytes) -> bytes:
        """The core's: what a peer's `bring` asks. Raises GyreError, which the peer gets as its text."""
        ...

    async def close(self) -> None:
        """Let go of everything; the files stay."""
        ...


class Give(Protocol):
    """How a file's weights get into an engine."""

    async def __call__(self, engine: Engine, file: Path, version: int, *, resume: bool) -> None:
        """EngineError, GyreError: they do not, and it serves nothing that is half of them."""
        ...


async def give(engine: Engine, file: Path, version: int, *, resume: bool) -> None:
    """A `Give`: the engine loads the file itself. Raises EngineError."""
    await (engine.resume(file, version) if resume else engine.load(file, version))
