"""Micro-steps into a rank's stage of the pipeline, and what comes out of it. Imports megatron."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from gyre.rl.objective import Decision
from gyre.trainers.batches import RowTensors, row_tensors
from gyre.trainers.executions import executions_of, spread_over_rows
from gyre.trainers.megatron.grid import Place
from gyre.trainers.megatron.orders import Orders, Through
from gyre.trainers.megatron.pipeline import Pipeline
from gyre.trainers.megatron.sharing import own_rows
from gyre.trainers.megatron.sums import gather_over_data
from gyre.trainers.megatron.work import Work
from gyre.trainers.port import MicroStepRefused
from gyre.trainers.ranked import Outcome
from gyre.trainers.replayed import RowExperts
from schemas.training import MicroStepEnqueued

Experts = Sequence[RowExperts]
"""Of each row; empty where none are told."""
_NOT_FINITE = "is not finite under these weights: go back to the last good version"


class Feeding:
    """One rank's. All ranks are fed the same micro-steps in the same order.

    Args:
        pipeline: its stage.
        vocabulary: ids are below it.
        parameters: of the stage, which accumulate.
        orders: of the rank.
        place: where it stands.
    """

    def __init__(
        self, pipeline: Pipeline, vocabulary: int, parameters: Mapping[str, nn.Parameter], orders: Orders, place: Place
    ) -> None:
        self._pipeline, self._vocabulary, self._parameters = pipeline, vocabulary, parameters
        self._orders, self._place = orders, place

    def feed(self, ticket: int, enqueued: MicroStepEnqueued, experts: Experts) -> tuple[Through, ...]:
        """Take a turn with each of its rows.

        What lies in several rows without a decision is measured first: forward only, past what is in the pipeline.

        Returns:
            Those that came through at this rank, of which this one may be one.
        Raises:
            MicroStepRefused: at every rank alike; nothing has changed then.
        """
        work, rows, spread = self._laid_out(ticket, enqueued, experts)
        sizes = self._sizes(enqueued)
        if spread:
            measuring = self._work(ticket, work.owners, work.advantages, {}, rows)
            self._measured(measuring, rows)
            work.decide(spread, measuring.tally)
        turns = (self._pipeline.turn(row, work, size) for row, size in zip(rows, sizes, strict=True))
        return tuple(self._through(each) for turn in turns for each in turn)

    def drain(self) -> tuple[Through, ...]:
        """Take back all that is in the pipeline, and hear of it as from `feed`."""
        return tuple(self._through(each) for each in self._pipeline.drain())

    def measure(self, enqueued: MicroStepEnqueued, experts: Experts) -> Outcome | None:
        """Forward only; what was found, at the rank that tells."""
        work, rows, _ = self._laid_out(0, enqueued, experts)
        self._measured(work, rows)
        return self._told(work)

    def _laid_out(
        self, ticket: int, enqueued: MicroStepEnqueued, experts: Experts
    ) -> tuple[Work, list[RowTensors], set[int]]:
        """The micro-step, this rank's rows of it, and the executions that have to be measured before they train."""
        owners, advantages = executions_of(enqueued)
        every = [
            self._of_this_stage(row_tensors(each, owners, self._vocabulary, share_prefixes=False, experts=taken))
            for each, taken in zip(enqueued.rows, experts or [()] * len(enqueued.rows), strict=True)
        ]
        rows = own_rows(every, self._orders.grid, self._place, sequence=self._orders.sequence)
        decisions = {
            owners[each.execution]: Decision(each.ratio, each.mask)
            for each in enqueued.masks
            if each.execution in owners
        }
        split = self._orders.grid.context > 1  # no rank sees all targets of any row
        spread = (set(range(len(advantages))) if split else spread_over_rows(every, len(advantages))) - decisions.keys()
        return self._work(ticket, owners, advantages, decisions, rows), rows, spread

    def _sizes(self, enqueued: MicroStepEnqueued) -> list[int]:
        """Tokens of the longest of the rows that ranks take side by side, for each turn."""
        tokens = [sum(len(each.target) for each in row.segments) for row in enqueued.rows]
        side = self._orders.grid.data
        return [max(tokens[start : start + side]) for start in range(0, len(tokens), side)]

    def _of_this_stage(self, row: RowTensors) -> RowTensors:
        """A row with the experts of the layers that are here."""
        if row.experts is None:
            return row
        return replace(row, experts=row.experts.tensor_split(self._orders.grid.pipeline, 1)[self._place.stage])

    def _work(
        self,
        ticket: int,
        owners: dict[str, int],
        advantages: list[float],
        decisions: dict[int, Decision],
        rows: Iterable[RowTensors],
    ) -> Work:
        return Work(ticket, owners, advantages, decisions, self._orders.settings, len(list(rows)))

    def _measured(self, work: Work, rows: list[RowTensors]) -> None:
        if not self._pipeline.measure(rows, work):
            raise MicroStepRefused(f"log pi {_NOT_FINITE}")
        gather_over_data(work.tally, self._orders.grid)

    def _through(self, work: Work) -> Through:
        """Ranks of one stage come here at the same turn; the gradient is looked at before the next row adds to it."""
        finite = all(each.grad is None or each.grad.isfinite().all() for each in self._parameters.values())
        gather_over_data(work.tally, self._orders.grid)
        work.decide(set(range(len(work.advantages))) - work.decisions.keys(), work.tally)
        trouble = f"log pi {_NOT_FINITE}" if work.spoilt else "" if finite else f"the gradient {_NOT_FINITE}"
        return Through(work.ticket, self._told(work), trouble, work.agreement)

    def _told(self, work: Work) -> Outcome | None:
        place = self._place
        tells = place.stage == self._orders.grid.pipeline - 1 and place.first and place.tensor == 0
        return Outcome(work.owners, work.tally, work.decisions) if tells else None
