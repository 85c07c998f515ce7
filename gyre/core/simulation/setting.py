"""What a simulation is of: the schedule, and how fast everything is that the schedule does not decide."""

from dataclasses import dataclass, field

from gyre.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations that do not depend on load, seconds."""

    to_train: float = 8.52
    """Role transition rollout -> train, request to completion (paper §6.2)."""
    to_rollout: float = 3.46
    """Role transition train -> rollout (paper §6.2)."""
    update: float = 0.0
    """From the last micro-step of a batch to OptimizerStepped: pipeline start and drain, reduction, clip, update."""
    publication: float = 0.0
    """From the last satellite's return to WeightsPublished."""
    launch: float = 0.0
    """From LaunchGranted to ExecutionLaunched: harness and sandbox are created."""
    admission: float = 0.0
    """From the last score of a group to its readiness for a batch."""
    evaluation: float = 0.0
    """One evaluation on held-out tasks."""
    commit: float = 0.0
    """From one commit of the scheduler to its next: what is due waits for its turn."""
    claim: float = 0.0
    """From a cell's completion of a micro-step to its next claim."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulated deployment."""

    plan: Plan
    capacity: int
    """C_e: concurrent executions of one elastic cell."""
    standalone_capacity: int = 0
    """The same of one standalone engine; 0: as an elastic cell's."""
    nodes: float = 1.0
    """Nodes of a cell: how many node-seconds of training it does in a second."""
    relief: float = 0.0
    """Share of a call's time that vanishes as its engine empties, in [0, 1): latency factor 1 - relief (1 - u)."""
    timings: Timings = field(default_factory=Timings)

    def capacity_of(self, cell: int) -> int:
        """Concurrent executions of this cell's engine."""
        return self.capacity if cell < self.plan.cells else self.standalone_capacity or self.capacity


def latency(load: float, relief: float) -> float:
    """How much longer a call takes on an engine at this load than on a full one: 1 - relief (1 - u).

    Args:
        load: u, executions per place; above 1 it goes on in the same line.
        relief: see `Setting`.
    """
    return 1.0 - relief * (1.0 - load)
