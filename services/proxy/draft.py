"""One answer in the making: what the engines generated so far, however often it had to move."""

from gyre.engines.port import GenerateRequest, Generation, PackedIds, Sampling
from gyre.engines.spans import add_span
from gyre.proxy.drawn import Drawn, Experts
from gyre.proxy.session import Plan
from schemas.base import pack_ints
from schemas.calls import Finish, VersionSpan


class Draft:
    """Starts empty; each generation goes on where the last one was cut."""

    def __init__(self, plan: Plan, execution: str, instance: str, stops: tuple[int, ...]) -> None:
        """`instance` makes request ids differ from those of an earlier process."""
        self._plan, self._execution, self._instance, self._stops = plan, execution, instance, stops
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[VersionSpan] = []
        self._cells: list[int] = []
        self._experts: list[bytes | None] = []
        self._cached = 0
        self._queue = self._engine = 0.0
        self._attempts = 0

    @property
    def kept(self) -> int:
        """Output tokens so far."""
        return len(self._ids)

    def request(self) -> GenerateRequest:
        """What to ask the next engine: the prompt with the partial answer behind it, and the rest of the budget."""
        self._attempts += 1
        sampling = self._plan.sampling
        return GenerateRequest(
            request_id=f"{self._plan.call}-{self._attempts}-{self._instance}",
            input_ids=PackedIds(self._plan.context + pack_ints(self._ids)),
            sampling=Sampling(
                max_tokens=sampling.max_tokens - len(self._ids),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=sampling.seed,
            ),
            cache_key=self._execution,
            stop_token_ids=self._stops,
            experts_from=self._plan.tokens + len(self._ids) - 1 if self._ids else max(0, self._plan.prefix_tokens - 1),
        )

    def take(self, cell: int, generation: Generation) -> Drawn | None:
        """Add what a cell generated; the whole answer if it is complete."""
        if self._attempts == 1:
            self._cached = generation.cached_tokens
        self._ids += generation.output_ids
        self._logprobs += generation.logprobs
        for span in generation.versions:
            add_span(self._versions, span.version, span.tokens)
        if generation.output_ids:
            self._experts.append(generation.routed_experts)
        generated = bool(generation.output_ids) or generation.finish != "abort"
        if generated and self._cells[-1:] != [cell]:
            self._cells.append(cell)
        self._queue += generation.queue_seconds
        self._engine += generation.engine_seconds
        if generation.finish != "abort":
            return self._drawn(generation.finish)
        return self._drawn("length") if len(self._ids) >= self._plan.sampling.max_tokens else None

    def _drawn(self, finish: Finish) -> Drawn:
        return Drawn(
            output_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            finish=finish,
            cells=tuple(self._cells),
            cached_tokens=self._cached,
            queue_seconds=self._queue,
            engine_seconds=self._engine,
            experts=self._taken(),
        )

    def _taken(self) -> Experts | None:
        """Of the call's own tokens, if all engines told."""
        told = [each for each in self._experts if each is not None]
        rows = self._plan.tokens - self._plan.prefix_tokens + len(self._ids)
        if not told or len(told) < len(self._experts):
            return None
        return Experts.of(b"".join(told), rows, root=self._plan.prefix_tokens == 0)
