"""A stream of micro-steps through a trainer: several in hand at once where its replica is a pipeline, else one by one.

A trainer whose stages work on different rows ends a micro-step only when later ones push it through, or when it is
told to drain. It implements `Stream` itself; `stream_of` makes one of any other trainer. Imports no torch.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gyre.trainers.port import Finished, Trainer
from schemas.training import MicroStepEnqueued, Passage


@dataclass(frozen=True, slots=True)
class Ended:
    """A micro-step that is in the accumulator, or was measured."""

    micro_step: int
    found: Finished


@runtime_checkable
class Stream(Protocol):
    """A trainer's end of the queue of micro-steps, driven from one thread.

    `zero`, `load`, `restore` and `release` of the trainer forget what is in hand; its `gradient` is refused until all
    of it has ended.
    """

    @property
    def depth(self) -> int:
        """Micro-steps to have in hand so that no stage waits for input; 1: one after another."""
        ...

    @property
    def moving(self) -> bool:
        """Whether `advance` would wait or return something; False at rest, however much is in hand."""
        ...

    @property
    def passage(self) -> Passage | None:
        """How the pipeline ran since `zero`; None: there is none."""
        ...

    def begin(self, enqueued: MicroStepEnqueued) -> None:
        """Take a micro-step in hand; raises `MicroStepRefused`, which leaves what is in hand, or `AccumulatorSpoilt`.

        What begins may already have ended when this returns.
        """
        ...

    def advance(self) -> tuple[Ended, ...]:
        """Wait until something has ended; () once what is left in hand wants more input.

        Raises:
            AccumulatorSpoilt: one of those in hand broke, and with it all that was accumulated.
            MicroStepRefused: a measurement came to nothing.
        """
        ...

    def drain(self) -> tuple[Ended, ...]:
        """End all that is in hand; raises as `advance`."""
        ...


class OneByOne:
    """The `Stream` of a trainer that does each micro-step at once."""

    depth = 1
    passage = None

    def __init__(self, trainer: Trainer) -> None:
        """Of this one."""
        self._trainer = trainer
        self._ended: list[Ended] = []

    @property
    def moving(self) -> bool:
        """See `Stream`."""
        return bool(self._ended)

    def begin(self, enqueued: MicroStepEnqueued) -> None:
        """See `Stream`; returns when it has ended."""
        self._ended.append(Ended(enqueued.micro_step, self._trainer.micro_step(enqueued)))

    def advance(self) -> tuple[Ended, ...]:
        """See `Stream`."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def drain(self) -> tuple[Ended, ...]:
        """See `Stream`."""
        return self.advance()


def stream_of(trainer: Trainer) -> Stream:
    """A trainer's stream."""
    return trainer if isinstance(trainer, Stream) else OneByOne(trainer)
