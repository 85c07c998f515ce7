"""The rows that decode together, as arrays: one step touches no row in Python unless it finishes."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre.engines.port import Finish, GenerateRequest, Generation
from gyre.engines.prefix import Ids
from gyre.engines.sampling import draw_key, uniforms
from gyre.engines.spans import add_span
from schemas.calls import VersionSpan


@dataclass(slots=True, eq=False)
class Row:
    """One request in flight, and what it has generated outside the batch."""

    request: GenerateRequest
    submitted: float
    """Seconds of a monotonic clock."""
    started: float | None = None
    joined: float | None = None
    """When its prompt was computed, the first time."""
    cached_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    context: Ids = field(init=False)
    """(T,) prompt and output up to the last time the row left the batch."""
    future: "Future[Generation]" = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.context = np.array(self.request.input_ids, dtype=np.int64)
        self.future.set_running_or_notify_cancel()  # a caller that gives up aborts; the future itself is ours

    def extend(self, ids: Ids, logprobs: NDArray[np.float32], version: int) -> None:
        """Take over tokens generated in the batch under one version."""
        self.output_ids.extend(ids.tolist())
        self.logprobs.extend(logprobs.tolist())
        add_span(self.versions, version, len(ids))
        self.context = np.concatenate([self.context, ids])

    def finish(self, finish: Finish, now: float) -> None:
        """Hand the generation to whoever waits for it."""
        started = now if self.started is None else self.started
        joined = now if self.joined is None else self.joined
        self.future.set_result(
            Generation(
                output_ids=tuple(self.output_ids),
                logprobs=tuple(self.logprobs),
                versions=tuple(self.versions),
                finish=finish,
                cached_tokens=self.cached_tokens,
                queue_seconds=started - self.submitted,
                engine_seconds=now - started,
                prefill_seconds=joined - started,
            )
        )


class Batch:
    """Rows [0, n), each waiting to feed its last token.

    Row r's cache holds `lengths[r]` tokens; its next input is `last[r]`, at that position, and the token drawn from it
    stands one further.
    """

    def __init__(self, capacity: int) -> None:
        self.rows: list[Row] = []
        self.last = np.zeros(capacity, np.int64)
        self.lengths = np.zeros(capacity, np.int64)
        self._made = np.zeros(capacity, np.int64)
        self._limits = np.zeros(capacity, np.int64)
        self._keys = np.zeros(capacity, np.uint64)
        self._temperature = np.zeros(capacity, np.float32)
        self._top_p = np.ones(capacity, np.float32)
        self._top_k = np.zeros(capacity, np.int64)
        self._stops = np.full((capacity, 1), -1, np.int64)  # -1: no token
        self._ids = np.zeros((capacity, 64), np.int64)
        self._logprobs = np.zeros((capacity, 64), np.float32)
        self._index = np.arange(capacity)

    def join(self, row: Row) -> None:
        """Add a row whose cache holds all of its context but the last token."""
        place, sampling = len(self.rows), row.request.sampling
        self.rows.append(row)
        self.last[place] = row.context[-1]
        self.lengths[place] = len(row.context) - 1
        self._made[place] = 0
        self._limits[place] = sampling.max_tokens - len(row.output_ids)
        self._keys[place] = draw_key(sampling.seed, row.request.request_id)
        self._temperature[place] = sampling.temperature
        self._top_p[place] = sampling.top_p
        self._top_k[place] = sampling.top_k
        self._set_stops(place, row.request.stop_token_ids)

    def sampling(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Temperature, top-p, top-k and the uniform draw of each row's next token, as `sample` takes them."""
        n = len(self.rows)
        draws = uniforms(self._keys[:n], self.lengths[:n] + 1)
        arrays = (self._temperature[:n], self._top_p[:n], self._top_k[:n], draws)
        temperature, top_p, top_k, uniform = (torch.from_numpy(array) for array in arrays)
        return temperature, top_p, top_k, uniform

    def record(self, tokens: Ids, logprobs: NDArray[np.float32]) -> list[tuple[int, Finish]]:
        """Take a step's tokens, (n,); the places that are done now come back, highest first."""
        n = len(self.rows)
        if self._made[:n].max() == self._ids.shape[1]:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)], axis=1)
            self._logprobs = np.concatenate([self._logprobs, np.zeros_like(self._logprobs)], axis=1)
        made = self._made[:n]
        self._ids[self._index[:n], made] = tokens
        self._logprobs[self._index[:n], made] = logprobs
        made += 1
        self.lengths[:n] += 1
        self.last[:n] = tokens
        stopped = (self._stops[:n] == tokens[:, None]).any(axis=1)
        done = np.flatnonzero(stopped | (made >= self._limits[:n]))
        return [(int(place), "stop" if stopped[place] else "length") for place in reversed(done)]

    def leave(self, place: int, version: int) -> Row:
        """Take a row out with what it made under `version`; the last row moves into its place."""
        row = self.rows[place]
        made = int(self._made[place])
        row.extend(self._ids[place, :made].copy(), self._logprobs[place, :made], version)
        end = len(self.rows) - 1
        if place != end:
            self._move(end, place)
            self.rows[place] = self.rows[end]
        self.rows.pop()
        return row

    def _move(self, source: int, target: int) -> None:
        made = int(self._made[source])
        self._ids[target, :made] = self._ids[source, :made]
        self._logprobs[target, :made] = self._logprobs[source, :made]
        for array in self._columns():
            array[target] = array[source]

    def _columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays that hold one entry a row and are as small as that."""
        state = (self.last, self.lengths, self._made, self._limits, self._keys)
        return *state, self._temperature, self._top_p, self._top_k, self._stops

    def _set_stops(self, place: int, stops: Sequence[int]) -> None:
        if (missing := len(stops) - self._stops.shape[1]) > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[place] = -1
        self._stops[place, : len(stops)] = stops
