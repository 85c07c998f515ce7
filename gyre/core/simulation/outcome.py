"""What a simulated run came to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated run."""

    updates: tuple[float, ...]
    """When each optimizer update was done, virtual seconds, in order."""
    staleness: tuple[int, ...]
    """d of each consumed group, training steps."""
    executions: int
    """Terminated executions."""
    transitions: int
    """Role transitions asked for."""
    seconds: float
    """Virtual seconds until the run had finished."""

    @property
    def mean_staleness(self) -> float:
        """Mean over consumed groups."""
        return sum(self.staleness) / len(self.staleness)
