"""What a trainer is: it turns micro-steps into an accumulated gradient and a reduced gradient into new weights.

A cell drives it from one thread: `load`, then `micro_step` as claims come, then `apply` and `save` on the core only.
Imports no torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gyre.errors import GyreError
from schemas.refs import WeightsRef
from schemas.training import ExecutionStats, MicroStepEnqueued, RatioMeasured

if TYPE_CHECKING:
    from torch import Tensor


class TrainerError(GyreError):
    """Root of what a trainer raises."""


class MicroStepRefused(TrainerError):
    """This input cannot be trained on, by anyone: reissuing it changes nothing. The accumulator is as it was before."""


class AccumulatorSpoilt(TrainerError):
    """A micro-step broke half-way. Until `zero()` the gradient is refused: discard this cell's contribution."""


class GradientRefused(TrainerError):
    """The reduced gradient is not finite or of the wrong length. Weights and optimizer are as they were before."""


class UpdateSpoilt(TrainerError):
    """The update gave weights that are not finite: they must not be saved. `load` or `restore` the version before."""


class WeightsRefused(TrainerError):
    """A weights or optimizer file is missing, damaged or does not fit the model. The trainer is as it was before."""


class ReductionFailed(TrainerError):
    """The sum did not come about in time. Accumulators are intact: open the reduction again under a new epoch."""


class LedgerBroken(TrainerError):
    """What the members hold is not what the reduction froze: a defect. Nothing was summed; the step must be redone."""


class FencedOut(TrainerError):
    """The reduction was opened without this process: zero the accumulator and say ContributionDiscarded."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a micro-step found; one of the two is empty, by its kind."""

    stats: tuple[ExecutionStats, ...] = ()
    """train: one for each execution in it, in order of appearance. Its gradient lies in the accumulator."""
    measured: tuple[RatioMeasured, ...] = ()
    """measure: the same, and nothing lies in the accumulator."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One optimizer update."""

    gradient_norm: float
    """Global 2-norm of the reduced sum, before clipping."""
    clip_coefficient: float
    """What the gradient was multiplied by: min(1, clip / norm)."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Files that are on disk, by digest."""

    weights: WeightsRef
    optimizer: WeightsRef


class Trainer(Protocol):
    """One full training replica. The optimizer's state exists only where `apply` or `restore` is called: the core."""

    @property
    def gradient(self) -> "Tensor":
        """(P,) like the parameters: the sum over the micro-steps since `zero`. The accumulator itself: don't write.

        Raises `AccumulatorSpoilt`.
        """
        ...

    def load(self, weights: Path) -> None:
        """Take these weights (safetensors) and zero the accumulator; raises `WeightsRefused`."""
        ...

    def micro_step(self, enqueued: MicroStepEnqueued) -> Finished:
        """Measure, or train into the accumulator; raises `MicroStepRefused` or `AccumulatorSpoilt`."""
        ...

    def zero(self) -> None:
        """Forget what was accumulated."""
        ...

    def apply(self, reduced: "Tensor") -> Applied:
        """Clip the sum over all members, (P,) float32, and update the weights once.

        Raises:
            GradientRefused: nothing has changed.
            UpdateSpoilt: the weights are not finite by now.
        """
        ...

    def save(self, folder: Path, sequence: int = 0) -> Saved:
        """Write weights and optimizer under the run folder; on return they are durable. Before OptimizerStepped.

        Args:
            folder: of the run.
            sequence: how far the core has read the run's log; kept inside, in a format that has room for it.
        """
        ...

    def restore(self, weights: Path, optimizer: Path) -> None:
        """Go on from a committed step: as `load`, with the optimizer's state; raises `WeightsRefused`."""
        ...

    def release(self) -> None:
        """Free parameters, accumulator and optimizer state while the cell serves; `load` or `restore` bring them in."""
        ...
