"""Continuous batching, one step at a time and without threads: rows join and leave between decode steps.

A row is prefilled up to its last token, in a group of rows with a cache of its own, a chunk between two decode steps;
then it moves into the batch, whose next step feeds that last token. So every token is drawn in one place. When the
weights change, all rows go back to be prefilled under the new ones.

Leaves out: paged blocks, attention other than full causal (sliding windows, state spaces), several devices.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gyre.engines.batch import Batch, Row
from gyre.engines.forward import forward_of
from gyre.engines.kv import Segment, SlotCache, visible
from gyre.engines.port import EngineError, EngineFailed, Finish
from gyre.engines.prefix import Kept, PrefixStore, common_prefix
from gyre.engines.sampling import sample

WORTH_WAITING = 64
"""Tokens shared with a row being prefilled that make a request wait for it and copy, rather than compute them again."""
SMALL = 256
"""Padded tokens of a prefill that cost no more than starting it."""
COLUMNS = 256
"""Length of a new cache, tokens."""


@dataclass(slots=True)
class Group:
    """Rows being prefilled together."""

    rows: list[Row]
    cache: SlotCache
    filled: list[int]
    """Tokens of each row whose keys and values are in the cache."""

    def missing(self, place: int) -> int:
        """Tokens still to compute: all but the last one, which the batch feeds."""
        return len(self.rows[place].context) - 1 - self.filled[place]


class Decoder:
    """The rows in flight of one model.

    Args:
        model: a transformers causal LM, in eval mode on the CPU.
        version: policy version of its weights.
        rows: most rows that decode together; further requests wait.
        prefix_tokens: most tokens of finished sequences to keep.
        chunk_tokens: most tokens of a prefill computed between two decode steps.
        clock: seconds, monotonic.
    """

    def __init__(
        self, model: Any, version: int, rows: int, prefix_tokens: int, chunk_tokens: int, clock: Callable[[], float]
    ) -> None:
        self.version = version
        self._forward = forward_of(model)
        self._rows = rows
        self._chunk = chunk_tokens
        self._clock = clock
        self._store = PrefixStore(prefix_tokens)
        self._unfinished: set[Row] = set()
        self._waiting: deque[Row] = deque()
        self._group: Group | None = None
        self._batch = Batch(rows)
        self._cache = SlotCache(1, COLUMNS)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._waiting or self._group or self._batch.rows)

    def add(self, row: Row) -> None:
        """Let a row wait for its turn."""
        self._unfinished.add(row)
        self._waiting.append(row)

    @torch.inference_mode()
    def step(self) -> None:
        """One chunk of prefill for those who join, then one token for those who have."""
        if self._group is None and self._waiting:
            self._group = self._gather()
        if self._group is not None:
            self._prefill(self._group)
        if self._batch.rows:
            self._decode()

    @torch.inference_mode()
    def abort(self, chosen: Callable[[Row], bool]) -> None:
        """Finish the chosen rows now, with what they have."""
        for row in [row for row in self._waiting if chosen(row)]:
            self._waiting.remove(row)
            self._finish(row, "abort")
        if self._group is not None:
            self._abort_group(self._group, chosen)
        for place in reversed(range(len(self._batch.rows))):
            if chosen(self._batch.rows[place]):
                self._leave(place, "abort")

    def restart(self, version: int) -> None:
        """The weights changed: every row is prefilled again, and nothing computed before is used again."""
        grouped = self._group.rows if self._group else []
        decoding = [self._batch.leave(place, self.version) for place in reversed(range(len(self._batch.rows)))]
        self._waiting.extendleft([*reversed(grouped), *decoding])  # they were here first
        self.version = version
        self.forget()

    def pin(self, keys: Collection[str]) -> None:
        """Keep what there is and will be of these cache keys until it is released."""
        self._store.pin(keys)

    def kept_keys(self) -> set[str]:
        """Cache keys of the sequences kept."""
        return self._store.keys

    def kept(self, key: str) -> list[Kept]:
        """The sequences kept under a cache key; never written to again."""
        return self._store.of(key)

    def keep(self, sequences: Iterable[Kept]) -> None:
        """Keep sequences that another decoder computed under the same weights."""
        for each in sequences:
            self._store.add(each)

    def release(self, key: str) -> None:
        """Forget what is kept under a cache key."""
        self._store.release(key)

    def forget(self) -> None:
        """Free keys and values: of rows that have left, and of kept sequences."""
        self._group = None
        self._cache = SlotCache(1, COLUMNS)
        self._store.clear()

    def fail(self, error: Exception) -> None:
        """What was done broke, wherever: all rows end with the reason, and the next ones start afresh."""
        reason = error if isinstance(error, EngineError) else EngineFailed(f"{type(error).__name__}: {error}")
        lost, self._unfinished = self._unfinished, set()
        for row in lost:
            if not row.future.done():
                row.future.set_exception(reason)
        self._waiting.clear()
        self._batch = Batch(self._rows)
        self.forget()

    def _gather(self) -> Group | None:
        """Choose waiting rows for a prefill: while there is room and padding is cheap, and none could copy another."""
        chosen: list[Row] = []
        filled: list[int] = []
        sources: list[Segment | None] = []
        for row in list(self._waiting):
            if len(self._batch.rows) + len(chosen) == self._rows:
                break
            reused, segment = self._reuse(row)
            if _gain(row, chosen) >= reused + WORTH_WAITING:
                continue
            if not self._fits([*filled, reused], [*chosen, row]):
                break
            chosen.append(row)
            filled.append(reused)
            sources.append(segment)
        return self._group_of(chosen, filled, sources) if chosen else None

    def _group_of(self, rows: list[Row], filled: list[int], sources: list[Segment | None]) -> Group:
        cache = SlotCache(len(rows), max(len(row.context) for row in rows))
        now = self._clock()
        for place, (row, reused, segment) in enumerate(zip(rows, filled, sources, strict=True)):
            self._waiting.remove(row)
            if row.started is None:
                row.started, row.cached_tokens = now, reused
            if segment is not None:
                cache.copy_in(place, segment, reused)
        return Group(rows, cache, filled)

    def _fits(self, filled: list[int], rows: list[Row]) -> bool:
        missing = [len(row.context) - 1 - have for row, have in zip(rows, filled, strict=True)]
        padded = len(rows) * max(missing)
        return len(rows) == 1 or padded <= SMALL or (padded <= self._chunk and padded <= 2 * sum(missing))

    def _reuse(self, row: Row) -> tuple[int, Segment | None]:
        """The longest prefix of the row (but for its last token) that a running row or a kept sequence holds."""
        wanted = row.context[:-1]
        best, segment = self._store.find(row.request.cache_key, wanted)
        for place, other in enumerate(self._batch.rows):
            shared = common_prefix(other.context[: self._batch.lengths[place]], wanted)
            if shared > best:
                best, segment = shared, self._cache.view(place, shared)
        return best, segment

    def _prefill(self, group: Group) -> None:
        """Compute the next chunk of a group; move its rows into the batch when all are complete."""
        missing = [group.missing(place) for place in range(len(group.rows))]
        width = min(max(missing, default=0), max(self._chunk // max(len(missing), 1), 1))
        if width > 0:
            self._compute(group, [min(count, width) for count in missing], width)
        if all(group.missing(place) == 0 for place in range(len(group.rows))):
            self._group = None
            self._join(group)

    def _compute(self, group: Group, counts: list[int], width: int) -> None:
        """Keys and values of each row's next `counts` tokens, right-padded to `width`."""
        ids = torch.zeros(len(counts), width, dtype=torch.long)
        starts = torch.tensor(group.filled)
        for place, (row, start, count) in enumerate(zip(group.rows, group.filled, counts, strict=True)):
            ids[place, :count] = torch.from_numpy(row.context[start : start + count])
        positions = starts[:, None] + torch.arange(width)  # (m, T)
        window = max(start + count for start, count in zip(group.filled, counts, strict=True))
        group.cache.at_spans(list(zip(group.filled, counts, strict=True)), window)
        within = positions.clamp(max=window - 1)  # padding too must stay where there are positions
        self._forward.fill(ids, within, visible(positions, window), group.cache)
        group.filled = [start + count for start, count in zip(group.filled, counts, strict=True)]

    def _join(self, group: Group) -> None:
        for place, row in enumerate(group.rows):
            tokens = group.filled[place]
            self._cache.reserve(len(self._batch.rows) + 1, tokens + 1)
            self._cache.copy_in(len(self._batch.rows), group.cache.view(place, tokens), tokens)
            row.joined = row.joined or self._clock()
            self._batch.join(row)

    def _decode(self) -> None:
        """One token for every row of the batch."""
        n = len(self._batch.rows)
        positions = torch.from_numpy(self._batch.lengths[:n].copy())
        window = int(self._batch.lengths[:n].max()) + 1
        self._cache.reserve(n, window)
        self._cache.at_ends(positions, window)
        ids, mask = torch.from_numpy(self._batch.last[:n, None].copy()), visible(positions[:, None], window)
        logits = self._forward.logits(ids, positions[:, None], mask, self._cache)
        tokens, logprobs = sample(logits, *self._batch.sampling())
        if not bool(torch.isfinite(logprobs).all()):
            raise EngineFailed(f"logits under version {self.version} are not finite; load other weights")
        for place, finish in self._batch.record(tokens.numpy(), logprobs.numpy()):
            self._leave(place, finish)

    def _leave(self, place: int, finish: Finish) -> None:
        """Take a row out of the batch, keep its keys and values for later calls, and hand over its generation."""
        end, tokens = len(self._batch.rows) - 1, int(self._batch.lengths[place])
        end_tokens = int(self._batch.lengths[end])
        row = self._batch.leave(place, self.version)
        self._store.add(Kept(row.request.cache_key, row.context[:tokens], self._cache.copy_out(place, tokens)))
        if place != end:
            self._cache.move(end, place, end_tokens)
        self._finish(row, finish)

    def _finish(self, row: Row, finish: Finish) -> None:
        row.finish(finish, self._clock())
        self._unfinished.remove(row)

    def _abort_group(self, group: Group, chosen: Callable[[Row], bool]) -> None:
        """Drop rows from a prefill; the others start theirs again, from what can still be reused.

        What was computed of each is kept: whoever takes an aborted request up again need not do it twice.
        """
        aborted = [row for row in group.rows if chosen(row)]
        if not aborted:
            return
        self._group = None
        for place, (row, tokens) in enumerate(zip(group.rows, group.filled, strict=True)):
            if tokens:
                kept = group.cache.copy_out(place, tokens)
                self._store.add(Kept(row.request.cache_key, row.context[:tokens], kept))
        self._waiting.extendleft(reversed([row for row in group.rows if row not in aborted]))
        for row in aborted:
            self._finish(row, "abort")


def _gain(row: Row, chosen: list[Row]) -> int:
    """Tokens that the row could copy from one of the chosen, once that one is in the batch."""
    wanted = row.context[:-1]
    return max((common_prefix(other.context[:-1], wanted) for other in chosen), default=0)
