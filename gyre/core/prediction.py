"""How long an execution is expected to take: a running estimate for each task, from what ended (launch order).

An estimate is the mean of what a task's executions took, with the mean over all tasks counted in as one more of them,
so that one long execution does not decide alone. A task that nobody has seen is expected to take that mean.
"""

from dataclasses import dataclass, field

from gyre.core import blocks
from gyre.core.blocks import Blocks


@dataclass(frozen=True, slots=True)
class Pace:
    """What ended so far; it grows with the number of tasks, not of executions."""

    count: int = 0
    seconds: float = 0.0
    """Sum over all executions."""
    tasks: Blocks[tuple[int, float]] = field(default_factory=dict)
    """Task number -> (executions, sum of their seconds)."""

    @property
    def mean(self) -> float:
        """Over all tasks, seconds; 0 before anything ended."""
        return self.seconds / self.count if self.count else 0.0


def learn(pace: Pace, task: int, seconds: float) -> Pace:
    """One more execution of this task took so long."""
    count, total = blocks.get(pace.tasks, task) or (0, 0.0)
    tasks = blocks.put(pace.tasks, task, (count + 1, total + seconds))
    return Pace(pace.count + 1, pace.seconds + seconds, tasks)


def predict(pace: Pace, task: int) -> float | None:
    """Seconds that an execution of this task is expected to take; None where none of it has ended."""
    known = blocks.get(pace.tasks, task)
    return None if known is None else (pace.mean + known[1]) / (known[0] + 1)
