"""One request of an SGLang server's engine under way, and what its pieces have brought so far."""

from dataclasses import dataclass, field

from gyre.engines.port import EngineFailed, GenerateRequest
from gyre.engines.sglang.wire import Generated
from schemas.calls import VersionSpan

_GREEDY = 1e-5  # temperature below which the port calls sampling greedy


@dataclass(slots=True)
class Flight:
    """One request being answered, in one or several pieces."""

    request: GenerateRequest
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    experts: list[bytes] = field(default_factory=list)
    cached: int = -1
    aborted: bool = False
    rid: str = ""
    """Of the piece under way; "" between two."""
    engine_seconds: float = 0.0

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return self.request.sampling.max_tokens - len(self.output_ids)

    @property
    def greedy(self) -> bool:
        """Whether the port calls its sampling greedy."""
        return self.request.sampling.temperature < _GREEDY

    @property
    def experts_from(self) -> int:
        """First position of which the piece under way is to tell the experts taken; -1 for none."""
        if self.request.experts_from is None:
            return -1
        known = len(self.request.input_ids) + len(self.output_ids)
        return known - 1 if self.output_ids else self.request.experts_from

    def add(self, piece: Generated, version: int) -> None:
        """What came in one piece, which was asked of this version of the weights."""
        meta = piece.meta_info
        if len(meta.output_token_logprobs) != len(piece.output_ids):
            found = f"{len(meta.output_token_logprobs)} log-probabilities of {len(piece.output_ids)} tokens"
            raise EngineFailed(f"SGLang answered {found}: it cannot be trained on")
        for span in meta.weight_versions:
            if span.version != str(version):
                found = f"weights {span.version!r}, not version {version}"
                raise EngineFailed(f"SGLang serves {found}: somebody changed them")
        self.output_ids += piece.output_ids
        self.logprobs += (0.0 if self.greedy else nats for nats, _, _ in meta.output_token_logprobs)
        self.cached = meta.cached_tokens if self.cached < 0 else self.cached
        self.engine_seconds += meta.e2e_latency
        if piece.output_ids:
            self._say_version(version, len(piece.output_ids))

    def _say_version(self, version: int, tokens: int) -> None:
        if self.versions and self.versions[-1].version == version:
            tokens += self.versions.pop().tokens
        self.versions.append(VersionSpan(version=version, tokens=tokens))
