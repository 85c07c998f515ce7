"""Events about model calls: request records (stream CALL) and what the proxy does to carry them."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from schemas.base import Digest, Float32s, Int32s, Model, Token, is_none
from schemas.refs import BlobRef

Finish = Literal["stop", "length", "abort", "error"]


class SamplingRecord(Model):
    """What the engine was told: what is recorded is what was sampled."""

    temperature: NonNegativeFloat
    top_p: float
    top_k: NonNegativeInt
    """0: no limit."""
    max_tokens: PositiveInt
    seed: int | None


class VersionSpan(Model):
    """A run of output tokens sampled under one policy version."""

    version: NonNegativeInt
    tokens: PositiveInt


class ModelCallRecorded(Model):
    """One request record, a node of the execution's tree. Said once by `proxy`, in stream CALL.

    The exact input of the engine is the parent's path cut to `prefix_tokens`, followed by `input_ids`.
    """

    type: Literal["ModelCallRecorded"] = "ModelCallRecorded"
    v: Literal[1] = 1
    execution: Token
    call: Token
    index: NonNegativeInt
    """Place of the call in its execution, from 0, in order of arrival."""
    thread: str
    """Hint of the conversation the call belongs to ("" when the client sends none)."""
    kind: Literal["turn", "compaction", "auxiliary"]
    parent: Token | None
    """The call whose path this one extends; None for a root."""
    prefix_tokens: NonNegativeInt
    """Tokens of the parent's path (its input and output) that this call's context begins with."""
    prefix_messages: NonNegativeInt
    """Messages of the parent's history (its own answer included) that were matched."""
    fallback: str = ""
    """Why the call does not go on from all of its history that was known: the template allows no exact increment there.
    "" for one that does. Such a call is exact too: it branches earlier, or is a root."""
    input_ids: Int32s
    """New context tokens: conditioning only, never targets."""
    output_ids: Int32s
    logprobs: Float32s
    """Behaviour log-probability of each output token, nats, of the distribution actually sampled."""
    versions: tuple[VersionSpan, ...]
    finish: Finish
    sampling: SamplingRecord
    messages: str
    """JSON: the new messages after the matched prefix, normalised; an answer of the policy among them stands as it was
    recorded, with the client's ids, and `record` names its call."""
    message_ends: tuple[int, ...] = ()
    """Tokens of the call's path up to the end of each of `messages`; -1 where no other history may go on from."""
    reply: str
    """JSON: the assistant message that went out."""
    stop_sequence: str = ""
    """The client's stop text that the output ends with and `reply` is cut before; "" where there was none."""
    system_digest: Digest
    """Of the normalised system prompt and tools: the root under which histories may match."""
    cells: tuple[int, ...]
    """Cells that generated, in order (more than one after a move)."""
    cached_tokens: NonNegativeInt
    queue_seconds: NonNegativeFloat
    engine_seconds: NonNegativeFloat
    total_seconds: NonNegativeFloat
    delivered: bool
    """Whether a client waited for the answer when it was recorded, before it was sent; if none did, the output is no
    candidate. What became of it then is said by DeliveryCorrected where it is otherwise."""
    experts: BlobRef | None = Field(default=None, exclude_if=is_none)
    """(I + O, layers, top k) int16, little-endian: of each of the call's own tokens, input then output, the experts
    that every layer took at the position before it, likeliest first; -1 where the engine did not tell (of the first
    token of a root always). None: it told nothing, or the model has no experts."""

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        """Whoever reads a record goes by its tokens: one that tells of some and not of others is no record."""
        outputs = len(self.output_ids)
        sampled = 4 * sum(span.tokens for span in self.versions)
        if len(self.input_ids) % 4 or outputs % 4 or not outputs == len(self.logprobs) == sampled:
            found = f"output_ids of {outputs} bytes, logprobs of {len(self.logprobs)}, versions of {sampled}"
            raise ValueError(f"input_ids of {len(self.input_ids)} bytes, {found}: 4 a token, equally many for outputs")
        return self


class DeliveryCorrected(Model):
    """Said by `proxy`, in stream CALL: what became of a recorded answer, where that is other than was said before.

    Received is what was written, to its last byte, to a connection that was still open then, or what a later call goes
    on from. The last word about a call counts: an answer whose client had hung up may be given to the same request when
    it is sent again.
    """

    type: Literal["DeliveryCorrected"] = "DeliveryCorrected"
    v: Literal[1] = 1
    execution: Token
    call: Token
    delivered: bool


class ModelCallRetried(Model):
    """Said by `proxy`: an engine request was taken up again elsewhere, inside the same client exchange."""

    type: Literal["ModelCallRetried"] = "ModelCallRetried"
    v: Literal[1] = 1
    execution: Token
    call: Token
    from_cell: NonNegativeInt
    reason: str
    kept_tokens: NonNegativeInt
    """Partial output tokens that the continued request starts from."""


class ModelCallContinued(Model):
    """Said by `proxy`: a request that was taken up again has gone on at the new cell, and how long that took.

    After one or more ModelCallRetried of the call, once there are further tokens.
    """

    type: Literal["ModelCallContinued"] = "ModelCallContinued"
    v: Literal[1] = 1
    execution: Token
    call: Token
    from_cell: NonNegativeInt
    """The one that had it first of those that were retried since it last went on."""
    to_cell: NonNegativeInt
    context_tokens: PositiveInt
    """Prompt and partial output that it went on from."""
    cached_tokens: NonNegativeInt
    """Of these: keys and values that the new cell had, kept or handed over."""
    seconds: NonNegativeFloat
    """From the end at the old cell to the first token at the new one."""


class HistoryRejected(Model):
    """Said by `proxy`: a request that could not be aligned or rendered; it has no record and trains nothing."""

    type: Literal["HistoryRejected"] = "HistoryRejected"
    v: Literal[1] = 1
    execution: Token
    call: Token
    reason: str


class RouteAssigned(Model):
    """Said by `proxy`: an execution's calls go to this cell (sticky)."""

    type: Literal["RouteAssigned"] = "RouteAssigned"
    v: Literal[1] = 1
    execution: Token
    cell: NonNegativeInt


class RouteMoved(Model):
    """Said by `proxy`: an execution's route moved."""

    type: Literal["RouteMoved"] = "RouteMoved"
    v: Literal[1] = 1
    execution: Token
    from_cell: NonNegativeInt
    to_cell: NonNegativeInt
    reason: str


class RequestCancelled(Model):
    """Said by `proxy`: an engine request was cancelled (client gone, execution ended, or its cell left rollout)."""

    type: Literal["RequestCancelled"] = "RequestCancelled"
    v: Literal[1] = 1
    execution: Token
    call: Token
    cell: NonNegativeInt
    reason: str


class KvHandoffCompleted(Model):
    """Said by `proxy`: cached keys and values moved with a route, acknowledged by the destination."""

    type: Literal["KvHandoffCompleted"] = "KvHandoffCompleted"
    v: Literal[1] = 1
    execution: Token
    from_cell: NonNegativeInt
    to_cell: NonNegativeInt
    tokens: NonNegativeInt
    seconds: NonNegativeFloat


class RecordsSealed(Model):
    """Said by `proxy` at closure: the execution's token is dead, its records are exactly this prefix of CALL."""

    type: Literal["RecordsSealed"] = "RecordsSealed"
    v: Literal[1] = 1
    execution: Token
    last_sequence: NonNegativeInt
    """Stream sequence in CALL of what was said last of the execution's calls; 0 when it made none."""
    count: NonNegativeInt
    """Request records; corrections are not counted."""
    digest: Digest
    """Over the digests of the bodies of records and corrections, in order."""
