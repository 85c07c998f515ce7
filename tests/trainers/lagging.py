"""A trainer in one process whose micro-steps end as a pipeline's do: when later ones have pushed them through."""

from typing import Any

from torch import Tensor

from gyre.rl.algorithms.port import Settings
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import TrainerError
from gyre.trainers.stream import Ended
from gyre.trainers.torch import TorchTrainer
from schemas.training import MicroStepEnqueued, Passage
from tests.trainers import batch


class Lagging(TorchTrainer):
    """Implements `gyre.trainers.stream.Stream` too. It computes at once, and tells of it as its stages would."""

    def __init__(self, *given: Any, stages: int, **named: Any) -> None:
        super().__init__(*given, **named)
        self._stages = stages
        self._forget()

    def _forget(self) -> None:
        self._inside: list[tuple[Ended, int]] = []  # with the rows that were taken in when its last one was
        self._told: list[Ended] = []
        self._fresh = False  # something has begun, and nobody has looked since
        self._since = self._startups = self._drains = self._pauses = self._rows = 0
        self._error: TrainerError | None = None

    @property
    def gradient(self) -> Tensor:
        if self._inside or self._told:
            raise TrainerError("gradient: micro-steps are in hand")
        return super().gradient

    @property
    def depth(self) -> int:
        return self._stages + 1

    @property
    def moving(self) -> bool:
        return bool(self._fresh or self._told or self._error or any(self._through(each) for _, each in self._inside))

    @property
    def passage(self) -> Passage:
        counts = {"startups": self._startups, "drains": self._drains, "pauses": self._pauses, "rows": self._rows}
        return Passage(**counts)

    def zero(self) -> None:
        super().zero()
        self._forget()

    def begin(self, enqueued: MicroStepEnqueued) -> None:
        moving, self._fresh = self.moving, True
        try:
            ended = Ended(enqueued.micro_step, super().micro_step(enqueued))
        except TrainerError as error:
            self._error = error
            return
        if enqueued.kind == "measure":
            self._told.append(ended)
            return
        self._startups += not self._since
        self._pauses += bool(self._since) and not moving
        self._since += len(enqueued.rows)
        self._rows += len(enqueued.rows)
        self._inside.append((ended, self._since))

    def advance(self) -> tuple[Ended, ...]:
        return self._take([each for each, last in self._inside if self._through(last)])

    def drain(self) -> tuple[Ended, ...]:
        self._drains += bool(self._since)
        self._since = 0
        return self._take([each for each, _ in self._inside])

    def _through(self, last: int) -> bool:
        return last + self._stages - 1 <= self._since

    def _take(self, ended: list[Ended]) -> tuple[Ended, ...]:
        self._fresh = False
        if self._error is not None:
            raise self._error
        told, self._told = [*self._told, *ended], []
        self._inside = [each for each in self._inside if each[0] not in ended]
        return tuple(told)


def lagging(stages: int) -> Lagging:
    """Of the tiny model and so many stages."""
    return Lagging(
        batch.tiny_model(),
        batch.TEMPERATURE,
        Settings(),
        AdamSettings(),
        share_prefixes=True,
        activation_bytes=1 << 30,
        stages=stages,
    )
