"""What an SGLang server (0.5.23) is sent and answers, as far as gyre uses it. Unknown fields are ignored."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Anything that the server says: it says more with every release."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FinishReason(Answer):
    """Why a generation ended."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    """stop: the token that ended it."""
    message: str = ""
    status_code: int | None = None
    """abort: set where the server gave up, None where somebody asked for it."""


class Span(Answer):
    """Output tokens [start, end) under one version of the weights."""

    version: str
    start: int
    end: int


class Meta(Answer):
    """`meta_info` of a finished generation."""

    finish_reason: FinishReason
    cached_tokens: int = 0
    weight_version: str
    weight_versions: tuple[Span, ...] = ()
    output_token_logprobs: tuple[tuple[float, int, str | None], ...] = ()
    """(nats, token id, text) of each output token: of softmax(logits / temperature), before top-p and top-k."""
    e2e_latency: float = 0.0
    """Seconds."""
    routed_experts: str | None = None
    """Base64 of little-endian int32, (prompt + output - 1, layers, top k): the experts of each position."""


class Generated(Answer):
    """What `/generate` answers for one prompt."""

    output_ids: tuple[int, ...] = ()
    meta_info: Meta


class Done(Answer):
    """What changes of weights answer."""

    success: bool
    message: str = ""


class Load(Answer):
    """One scheduler's load."""

    num_running_reqs: int
    num_waiting_reqs: int


class Loads(Answer):
    """What `/v1/loads` answers."""

    loads: tuple[Load, ...] = Field(min_length=1)

    @property
    def requests(self) -> int:
        """Requests that the server has, waiting ones included."""
        return sum(each.num_running_reqs + each.num_waiting_reqs for each in self.loads)


class ServerInfo(Answer):
    """What `/server_info` answers."""

    tp_size: int = Field(ge=1)
    pp_size: int = 1
    dp_size: int = 1
    enable_return_routed_experts: bool = False


class ModelInfo(Answer):
    """What `/model_info` answers."""

    model_path: str
    weight_version: str
