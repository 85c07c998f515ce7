"""What a rollout engine is: token-in, token-out generation under a known policy version. Imports no torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, overload

import numpy as np

from gyre.engines.blocks import KvBlocks
from schemas.base import Int32s, ints, pack_ints
from schemas.calls import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

Finish = Literal["stop", "length", "abort"]


class EngineError(Exception):
    """Root of what an engine raises."""


class RequestRefused(EngineError):
    """The request itself is at fault: sending it again, anywhere, changes nothing."""


class ContextOverflow(RequestRefused):
    """Prompt and allowed output do not fit the model's context; `tokens` and `maximum` carry both numbers."""

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(
            f"input_ids + max_tokens: {tokens} tokens > {maximum} maximum; shorten the prompt or lower max_tokens"
        )
        self.tokens = tokens
        self.maximum = maximum


class EngineUnavailable(EngineError):
    """Not now, or not here: draining, released, closed or unreachable. Another engine may serve the same request."""


class EngineDraining(EngineUnavailable):
    """It admits no requests now, since its cell leaves rollout or is not back yet."""


class EngineFailed(EngineError):
    """The engine broke while it computed (its message says how); what it had generated is lost."""


class KvRefused(EngineError):
    """These keys and values are of other weights or of another model: whoever wanted them computes its own."""


class WeightsRefused(EngineError):
    """These weights do not fit the model, or the file cannot be read. The engine goes on with the weights it had."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw. What is reported is the log-probability of the distribution drawn from (see `Generation`).

    Raises:
        RequestRefused: a value out of range; the message names the field, the value and the range.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 (anything below 1e-5) is greedy: the likeliest token, the lowest id in a tie."""
    top_p: float = 1.0
    """Mass of the smallest set of likeliest tokens to draw from, measured after `top_k`; in (0, 1]."""
    top_k: int = 0
    """How many of the likeliest tokens to draw from; 0: no limit."""
    seed: int | None = None
    """The draw at absolute position p depends on (seed, p) alone: a request continued elsewhere from its partial
    output goes on as it would have here. None: seeded from the request id."""

    def __post_init__(self) -> None:
        _check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _check(0.0 <= self.temperature < float("inf"), "temperature", self.temperature, "finite and not negative")
        _check(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _check(self.top_k >= 0, "top_k", self.top_k, "0 (no limit) or more")


class PackedIds(Sequence[int]):
    """Token ids that stay packed until somebody reads them: a long prompt passes through a proxy as it is."""

    __slots__ = ("packed",)

    def __init__(self, packed: Int32s) -> None:
        """`packed` as `schemas.base.pack_ints` makes it. Raises ValueError unless it is whole ids."""
        if len(packed) % 4:
            raise ValueError(f"packed: {len(packed)} bytes must be a multiple of four")
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed) // 4

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...
    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        return tuple(ints(self.packed))[place]

    def __iter__(self) -> Iterator[int]:
        return iter(ints(self.packed))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedIds):
            return self.packed == other.packed
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))


def packed(ids: Sequence[int]) -> Int32s:
    """Token ids, packed; those of PackedIds at no cost."""
    return ids.packed if isinstance(ids, PackedIds) else pack_ints(ids)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One model call.

    Raises:
        RequestRefused: an empty prompt or a negative token id.
    """

    request_id: str
    """Unique among the requests in flight."""
    input_ids: Sequence[int]
    sampling: Sampling
    cache_key: str = ""
    """Whose cached keys and values to try first: the execution. Never changes what is generated."""
    stop_token_ids: tuple[int, ...] = ()
    """Each ends the generation, and is its last output token."""
    experts_from: int | None = None
    """Position in prompt and output from which on to tell the experts taken; None: don't."""

    def __post_init__(self) -> None:
        _check(len(self.input_ids) >= 1, "input_ids", "()", "at least one token")
        least = int(np.frombuffer(packed(self.input_ids), dtype="<i4").min())
        _check(least >= 0, "input_ids", least, "token ids, not negative")


@dataclass(frozen=True, slots=True)
class Generation:
    """What was generated; also after an abort, when it is what there was by then (perhaps nothing)."""

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, float32, one for each output token: log_softmax(logits / temperature), renormalised over what top-k and
    then top-p left: the distribution that was sampled. Greedy tokens were certain: 0."""
    versions: tuple[VersionSpan, ...]
    """The policy version of each output token, as runs that add up to len(output_ids)."""
    finish: Finish
    """stop: the last token is a stop token; length: max_tokens were generated; abort: neither, by request."""
    cached_tokens: int
    """Prompt tokens whose keys and values were reused."""
    queue_seconds: float
    """From the call to the first computation."""
    engine_seconds: float
    """From the first computation to the last token."""
    prefill_seconds: float = 0.0
    """Of these: until the prompt was computed and the first token could be drawn."""
    routed_experts: bytes | None = None
    """(prompt + output - 1 - experts_from, layers, top k) int16, little-endian: at each position from `experts_from` to
    the one before the last output token, the experts that every layer took, likeliest first; those of an output token
    are of the pass that drew it. -1: not known of this position. None: not asked for, nothing was generated, or an
    engine or model that cannot tell, which is no error: routers choose anew in training."""


@dataclass(frozen=True, slots=True)
class Health:
    """How an engine stands."""

    version: int
    running: int
    """Requests in flight, waiting ones included."""
    context: int
    """Longest prompt + output, tokens."""
    admitting: bool


class Generator(Protocol):
    """The part of an engine that any process may use: the proxy sees engines only so."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate until a stop token, max_tokens or an abort. Cancelling the call aborts the request.

        Raises:
            ContextOverflow: prompt and max_tokens exceed the context.
            RequestRefused: the request id is in flight already, or a token id is beyond the vocabulary.
            EngineUnavailable: released, draining, closed or unreachable.
            EngineFailed: the computation broke.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End this request now: its `generate` returns the partial generation. Unknown ids are ignored."""
        ...

    async def abort_all(self) -> None:
        """End every request in flight, as `abort` does."""
        ...

    async def health(self) -> Health:
        """How the engine stands now. Raises EngineUnavailable when it cannot be reached."""
        ...

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        """Copies of what is kept under a cache key; no sequences where nothing is. What is in flight is not kept yet.

        Raises:
            KvRefused: the weights are of another version than this one.
            EngineUnavailable: released, closed or unreachable.
        """
        ...

    async def release_kv(self, key: str) -> None:
        """Forget what is kept under a key: somebody else has it now, or nobody needs it. Unknown keys are ignored."""
        ...

    async def take_kv(self, key: str, source: str) -> int:
        """Fetch what the engine at the URL `source` keeps under a key, and acknowledge it: then it is released there.

        Returns how many tokens came; 0 where it kept none.

        Raises:
            KvRefused: the two have weights of different versions, or of different models. It is released there too.
            EngineUnavailable: one of the two is released, closed or unreachable.
        """
        ...

    async def close(self) -> None:
        """Stop for good; what is in flight ends as by an abort."""
        ...


class Engine(Generator, Protocol):
    """A generator and its weights: the cell that owns it sees it so."""

    @property
    def version(self) -> int:
        """Policy version of the weights that the next token is sampled under."""
        ...

    @property
    def running(self) -> int:
        """Requests in flight, waiting ones included."""
        ...

    @property
    def context(self) -> int:
        """Longest prompt + output, tokens."""
        ...

    async def load(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """Swap the weights between two decode steps: a safetensors file or a state dict (copied).

        Cached prefixes are dropped. Requests in flight go on: their keys and values are recomputed under the new
        weights, so every later token is sampled from the new policy alone, and their version spans show the seam.

        Raises:
            WeightsRefused: unreadable, or names or shapes that do not fit; nothing was changed.
            EngineUnavailable: released (use `resume`) or closed.
        """
        ...

    async def release(self) -> None:
        """Abort what is in flight, free parameters, keys and values, and refuse `generate` until `resume`."""
        ...

    async def resume(self, weights: "Path | Mapping[str, Tensor]", version: int) -> None:
        """Take these weights and serve again after `release`. Raises WeightsRefused (and stays released)."""
        ...

    async def import_kv(self, blocks: KvBlocks) -> int:
        """Keep another engine's keys and values under their key, as if computed here; how many tokens they are.

        Raises:
            KvRefused: computed by another version of the weights, or of another shape. Nothing was kept.
            EngineUnavailable: released or closed.
        """
        ...

    async def pin_kv(self, keys: Collection[str]) -> None:
        """Hold what is or will be kept under these keys until `release_kv`, whatever else needs room.

        New weights and `release` end every pin.
        """
        ...

    async def unpinned(self) -> None:
        """Wait until all that is kept under pinned keys by now was released."""
        ...


def check_context(request: GenerateRequest, context: int, vocabulary: int | None = None) -> None:
    """Refuse what no engine with this context (tokens) and vocabulary can serve: ContextOverflow, RequestRefused."""
    tokens = len(request.input_ids) + request.sampling.max_tokens
    if tokens > context:
        raise ContextOverflow(tokens, context)
    if vocabulary is not None:
        largest = max(request.input_ids)
        _check(largest < vocabulary, "input_ids", largest, f"token ids below the vocabulary's {vocabulary}")


def _check(holds: bool, field: str, value: object, rule: str) -> None:
    if not holds:
        raise RequestRefused(f"{field}: {value!r} must be {rule}")
