"""What a run's schedule is to be: the numbers of design §6, fixed for the whole run, and what follows from them."""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import ceil
from typing import Literal

ROUNDING = 1e-9  # of products such as rho_min * B
SEED_BITS = 31  # fits the seed of any engine

Kind = Literal["elastic", "async", "colocate"]
Dispatching = Literal["boundary", "continuous"]
LaunchOrder = Literal["fifo", "longest_predicted"]
GroupVersion = Literal["burst", "published"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule's parameters. Symbols are those of the paper, §4."""

    steps: int
    """S: optimizer updates in the run."""
    groups: int
    """B: groups consumed by one update."""
    executions: int
    """N: executions in a group."""
    phi: float
    """Groups dispatched ahead, in units of B; phi * B is whole."""
    mu: int
    """Updates in a burst."""
    rho_min: float
    """Share of B that must be ready before a cell may train, in (0, 1]."""
    tau_seconds: float
    """How long the supply must have held."""
    cells: int
    """K: elastic cells 0..K-1, the core first."""
    tasks: tuple[str, ...]
    """Names of the training tasks; each epoch passes over all of them."""
    seed: int
    """Seed of the executions' own seeds."""
    order_seed: int
    """Seed of the order of tasks."""
    standalone: int = 0
    """Engines that never train: cells K, K+1, ..."""
    evaluation_every: int = 0
    """Updates between evaluations; 0: only before the first and after the last."""
    evaluation_episodes: int = 0
    """Episodes of one evaluation; 0: no evaluation at all."""
    kind: Kind = "elastic"
    """Placement policy: cells move one by one, are split for good, or switch all together."""
    stream: bool = True
    """Train on groups as they become ready; False: a burst begins once all of its groups are ready."""
    dispatching: Dispatching = "boundary"
    """Groups are dispatched after each publication, or one by one as others become ready."""
    launch_order: LaunchOrder = "fifo"
    """The oldest queued execution first, or the one whose task has taken longest so far."""
    oversample: int = 0
    """s: executions dispatched beyond N in each group; what is left once N are valid is cancelled."""
    trainers: int = 0
    """Under "async" alone: cells 0..trainers-1 train for good, the other cells only serve."""
    group_version: GroupVersion = "burst"
    """What a boundary dispatch labels its groups with: the version of the burst's end that it follows, however many are
    published while it is said; or the newest one, as it was before there was a choice."""
    # What follows from these, worked out once, for it is asked at every decision:
    size: int = field(init=False)
    """Executions dispatched in a group, N + s."""
    depth: int = field(init=False)
    """(phi + mu) B: groups under way just after a boundary dispatch (Q_b), unfinished ones at all times (Q_c)."""
    total_groups: int = field(init=False)
    """A run of S steps dispatches exactly S B groups."""
    bursts: int = field(init=False)
    """Bursts in the run; the last one may be short."""
    quotas: tuple[int, ...] = field(init=False, repr=False)
    """`quota` for 0, 1, ... all bursts ended."""
    supply_needed: int = field(init=False)
    """Ready groups that make a supply: rho_min B, rounded up."""

    def __post_init__(self) -> None:
        """Work out what follows."""
        put = partial(object.__setattr__, self)  # frozen for everybody else
        put("size", self.executions + self.oversample)
        put("depth", round(self.phi * self.groups) + self.mu * self.groups)
        put("total_groups", self.steps * self.groups)
        put("bursts", ceil(self.steps / self.mu))
        put("quotas", tuple(map(self.quota, range(self.bursts + 1))))
        put("supply_needed", max(1, ceil(self.rho_min * self.groups - ROUNDING)))

    def burst_groups(self, bursts_ended: int) -> int:
        """Groups that the burst trains which is on when so many have ended: mu B, fewer in a short last one."""
        return (self.burst_last(bursts_ended) - bursts_ended * self.mu) * self.groups

    def burst_last(self, bursts_ended: int) -> int:
        """The last step of the burst that is on when so many have ended."""
        return min((bursts_ended + 1) * self.mu, self.steps)

    def burst_version(self, bursts_ended: int) -> int:
        """The version published by the last burst that has ended; 0 before there is one."""
        return self.burst_last(bursts_ended - 1)

    def quota(self, bursts_ended: int) -> int:
        """Groups dispatched in all once so many bursts have ended: (phi + mu) B, then mu B each, trimmed to S B."""
        return min(self.depth + bursts_ended * self.mu * self.groups, self.total_groups)

    def task(self, index: int) -> str:
        """The task of the run's group `index`, from 0."""
        return self.tasks[self.task_number(index)]

    def task_number(self, index: int) -> int:
        """Place in `tasks` of the task of the run's group `index`, from 0."""
        epoch, place = divmod(index, len(self.tasks))
        return _epoch_order(self.order_seed, epoch, len(self.tasks))[place]

    def execution_seed(self, execution: str) -> int:
        """Seed of one execution: below 2**31, and the same whenever the run is told again."""
        digest = hashlib.sha256(f"{self.seed}:{execution}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> (32 - SEED_BITS)


def group_name(index: int) -> str:
    """Id of the run's group `index`, from 0."""
    return f"g{index}"


def execution_name(group: int, index: int) -> str:
    """Id of execution `index` of the run's group `group`, both from 0."""
    return f"x{group}-{index}"


def group_place(group: str) -> int:
    """The index that `group_name` was given; -1 for any other text."""
    try:
        index = int(group[1:])
    except ValueError:
        return -1
    return index if index >= 0 and group == f"g{index}" else -1


@lru_cache(maxsize=1 << 14)  # each is asked for at every event of the execution
def execution_place(execution: str) -> tuple[int, int] | None:
    """The group and index that `execution_name` was given; None for any other text."""
    head, _, tail = execution[1:].partition("-")
    try:
        group, index = int(head), int(tail)
    except ValueError:
        return None
    return (group, index) if group >= 0 <= index and execution == f"x{group}-{index}" else None


@lru_cache(maxsize=8)
def _epoch_order(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """A permutation of 0..count-1: a shuffle that depends on the seed and the epoch alone."""
    return tuple(sorted(range(count), key=lambda place: _hash(f"{seed}:{epoch}:{place}")))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
