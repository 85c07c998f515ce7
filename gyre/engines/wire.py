"""The HTTP form of a generator: bodies of what it is asked and answers, and its errors.

Token ids and log-probabilities are packed (base64 of little-endian int32 / float32), to come back bit for bit.
"""

from dataclasses import asdict
from typing import Literal

from gyre.engines.port import (
    ContextOverflow,
    EngineDraining,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    Finish,
    GenerateRequest,
    Generation,
    KvRefused,
    RequestRefused,
    Sampling,
    packed,
)
from schemas.base import Float32s, Int32s, Model, floats, ints, pack_floats, pack_ints
from schemas.calls import SamplingRecord, VersionSpan

ErrorKind = Literal["context_overflow", "refused", "kv_refused", "draining", "unavailable", "failed"]
STATUS: dict[ErrorKind, int] = {
    "context_overflow": 400,
    "refused": 400,
    "kv_refused": 409,
    "draining": 503,
    "unavailable": 503,
    "failed": 500,
}


class GenerateBody(Model):
    """`POST /generate`."""

    request_id: str
    input_ids: Int32s
    sampling: SamplingRecord
    cache_key: str = ""
    stop_token_ids: tuple[int, ...] = ()
    experts_from: int | None = None

    @classmethod
    def of(cls, request: GenerateRequest) -> "GenerateBody":
        """Pack a request."""
        return cls(
            request_id=request.request_id,
            input_ids=packed(request.input_ids),
            sampling=SamplingRecord(**asdict(request.sampling)),
            cache_key=request.cache_key,
            stop_token_ids=request.stop_token_ids,
            experts_from=request.experts_from,
        )

    def request(self) -> GenerateRequest:
        """Unpack it. Raises RequestRefused when a value is out of range."""
        try:
            input_ids = tuple(ints(self.input_ids))
        except ValueError as error:
            raise RequestRefused(f"input_ids: {len(self.input_ids)} bytes must be a multiple of four") from error
        sampling = Sampling(**self.sampling.model_dump())
        return GenerateRequest(
            self.request_id, input_ids, sampling, self.cache_key, self.stop_token_ids, self.experts_from
        )


class GenerationBody(Model):
    """The answer to `POST /generate`."""

    output_ids: Int32s
    logprobs: Float32s
    versions: tuple[VersionSpan, ...]
    finish: Finish
    cached_tokens: int
    queue_seconds: float
    engine_seconds: float
    prefill_seconds: float = 0.0
    routed_experts: bytes | None = None

    @classmethod
    def of(cls, generation: Generation) -> "GenerationBody":
        """Pack a generation."""
        return cls(
            output_ids=pack_ints(generation.output_ids),
            logprobs=pack_floats(generation.logprobs),
            versions=generation.versions,
            finish=generation.finish,
            cached_tokens=generation.cached_tokens,
            queue_seconds=generation.queue_seconds,
            engine_seconds=generation.engine_seconds,
            prefill_seconds=generation.prefill_seconds,
            routed_experts=generation.routed_experts,
        )

    def generation(self) -> Generation:
        """Unpack it."""
        return Generation(
            output_ids=tuple(ints(self.output_ids)),
            logprobs=tuple(floats(self.logprobs)),
            versions=self.versions,
            finish=self.finish,
            cached_tokens=self.cached_tokens,
            queue_seconds=self.queue_seconds,
            engine_seconds=self.engine_seconds,
            prefill_seconds=self.prefill_seconds,
            routed_experts=self.routed_experts,
        )


class AbortBody(Model):
    """`POST /abort`: this request, or every one when `request_id` is null."""

    request_id: str | None


class KvBody(Model):
    """`POST /kv/export` (answered by the bytes of `gyre.engines.blocks`)."""

    key: str
    version: int


class KvReleaseBody(Model):
    """`POST /kv/release`: the acknowledgement of whoever took them."""

    key: str


class KvTakeBody(Model):
    """`POST /kv/take`: fetch them from the engine at this URL."""

    key: str
    source: str


class KvTakenBody(Model):
    """The answer to `POST /kv/take`."""

    tokens: int


class HealthBody(Model):
    """The answer to `GET /health`."""

    version: int
    running: int
    context: int
    admitting: bool


class ErrorBody(Model):
    """Any answer that is not 200."""

    error: ErrorKind
    detail: str
    tokens: int = 0
    maximum: int = 0

    @classmethod
    def of(cls, error: EngineError) -> "ErrorBody":
        """How an engine's error travels."""
        match error:
            case ContextOverflow():
                return cls(error="context_overflow", detail=str(error), tokens=error.tokens, maximum=error.maximum)
            case RequestRefused():
                return cls(error="refused", detail=str(error))
            case KvRefused():
                return cls(error="kv_refused", detail=str(error))
            case EngineUnavailable():
                return cls(error="unavailable", detail=str(error))
            case _:
                return cls(error="failed", detail=str(error))

    def exception(self) -> EngineError:
        """The error to raise at the client."""
        match self.error:
            case "context_overflow":
                return ContextOverflow(self.tokens, self.maximum)
            case "refused":
                return RequestRefused(self.detail)
            case "kv_refused":
                return KvRefused(self.detail)
            case "draining":
                return EngineDraining(self.detail)
            case "unavailable":
                return EngineUnavailable(self.detail)
            case "failed":
                return EngineFailed(self.detail)
