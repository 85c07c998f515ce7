"""What a trainer has given its ranks to do and has not heard the end of. Imports no megatron."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gyre.trainers.megatron.orders import Through
from gyre.trainers.port import AccumulatorSpoilt, Finished, TrainerError
from gyre.trainers.ranked import Outcome
from gyre.trainers.ranks import RankLost
from gyre.trainers.replayed import RowExperts
from gyre.trainers.stream import Ended
from schemas.training import ExpertAgreement, MicroStepEnqueued, Passage

Tell = Callable[[str, Sequence[Any]], None]
"""Tells all ranks the same, without waiting."""
Hear = Callable[[], list[Any]]
"""What all ranks answer to what they were told first and have not answered yet."""


@dataclass(slots=True)
class _One:
    """A micro-step that ranks still work on."""

    enqueued: MicroStepEnqueued
    left: int
    """Ranks that it is not through with."""
    outcomes: list[Outcome] = field(default_factory=list)
    agreements: list[Tensor] = field(default_factory=list)
    trouble: str = ""


class InHand:
    """Micro-steps from `begin` until they have ended, in a pipeline that stays filled between them.

    Args:
        tell: to the ranks.
        hear: from them.
        ranks: how many.
        stages: of the pipeline; with one of them nothing stays in it.
    """

    def __init__(self, tell: Tell, hear: Hear, ranks: int, stages: int) -> None:
        self._tell, self._hear, self._ranks, self._stages = tell, hear, ranks, stages
        self._told: deque[tuple[Literal["feed", "drain", "measure"], int]] = deque()  # and the micro-step's ticket
        self._tickets = 0
        self.forget()

    def forget(self) -> None:
        """The ranks have let go of everything."""
        self._ones: dict[int, _One] = {}
        self._ended: list[Ended | TrainerError] = []
        self._filled = False
        self._startups = self._drains = self._pauses = self._rows = 0

    @property
    def moving(self) -> bool:
        """See `gyre.trainers.stream.Stream`."""
        return bool(self._told or self._ended)

    @property
    def empty(self) -> bool:
        """Whether nothing is in hand, and no end of anything is to be told."""
        return not self._ones and not self._ended

    @property
    def passage(self) -> Passage | None:
        """See `gyre.trainers.stream.Stream`."""
        counts = {"startups": self._startups, "drains": self._drains, "pauses": self._pauses, "rows": self._rows}
        return Passage(**counts) if self._stages > 1 else None

    def begin(self, enqueued: MicroStepEnqueued, experts: Sequence[RowExperts] = ()) -> None:
        """See `gyre.trainers.stream.Stream`; `experts` of each row, where they are told."""
        self._tickets += 1
        if enqueued.kind == "train":
            self._fill(len(enqueued.rows))
            self._tell("feed", (self._tickets, enqueued, experts))
        else:
            self._tell("measure", (enqueued, experts))
        self._told.append(("feed" if enqueued.kind == "train" else "measure", self._tickets))
        self._ones[self._tickets] = _One(enqueued, self._ranks)

    def _fill(self, rows: int) -> None:
        if self._stages > 1:
            self._startups += not self._filled
            self._pauses += self._filled and not self._told
            self._filled = True
        self._rows += rows

    def advance(self) -> tuple[Ended, ...]:
        """See `gyre.trainers.stream.Stream`."""
        while self._told and not self._ended:
            self._hear_one()
        return self._taken()

    def drain(self) -> tuple[Ended, ...]:
        """See `gyre.trainers.stream.Stream`."""
        if self._filled:
            self._tell("drain", ())
            self._told.append(("drain", 0))
            self._drains += 1
            self._filled = False
        self.settle()
        return self._taken()

    def settle(self) -> None:
        """Wait until the ranks have done all that they were told: what is next may be something else."""
        while self._told:
            self._hear_one()

    def _taken(self) -> tuple[Ended, ...]:
        ended, self._ended = self._ended, []
        for each in ended:
            if isinstance(each, TrainerError):
                raise each
        return tuple(each for each in ended if isinstance(each, Ended))

    def _hear_one(self) -> None:
        kind, ticket = self._told.popleft()
        try:
            answers = self._hear()
        except RankLost:
            raise
        except TrainerError as error:  # refused by all ranks, before any of them did anything
            self._ones.pop(ticket, None)
            self._ended.append(error)
            return
        if kind == "measure":
            one = self._ones.pop(ticket)
            found: Outcome = next(filter(None, answers))
            measured = found.tally.ratios(one.enqueued, found.owners)
            self._ended.append(Ended(one.enqueued.micro_step, Finished(measured=measured)))
            return
        for through in (each for answer in answers for each in answer):
            self._pass(through)

    def _pass(self, through: Through) -> None:
        one = self._ones[through.ticket]
        one.left -= 1
        one.trouble = one.trouble or through.trouble
        one.agreements.append(through.agreement)
        if through.outcome is not None:
            one.outcomes.append(through.outcome)
        if one.left:
            return
        del self._ones[through.ticket]
        if one.trouble:
            self._ended.append(AccumulatorSpoilt(one.trouble))
        else:
            self._ended.append(
                Ended(one.enqueued.micro_step, _trained(one.outcomes[0], torch.stack(one.agreements).sum(0)))
            )


def _trained(outcome: Outcome, agreement: Tensor) -> Finished:
    tally, decisions = outcome.tally, outcome.decisions
    stats = (
        tally.stats(index, each, decisions[index]).model_copy(update={"experts": _agreed(agreement[:, index])})
        for each, index in outcome.owners.items()
    )
    return Finished(stats=tuple(stats))


def _agreed(sums: Tensor) -> ExpertAgreement | None:
    """(3,): choices, overlap, equal likeliest ones."""
    choices, overlap, top = sums.tolist()
    return ExpertAgreement(choices=int(choices), overlap=overlap / choices, top=top / choices) if choices else None
