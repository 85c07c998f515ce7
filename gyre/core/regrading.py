"""What a regrade changes: the rewards that the log gave, beside what was found when the states were scored again.

Nothing is decided here and no reward changes: rewards that were assigned are facts, and what was trained was trained.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gyre.core.admission import seed_of
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, GroupDispatched
from schemas.envelope import Event
from schemas.refs import StateRef
from schemas.rewards import RewardAssigned, RewardChange, RewardUnresolved, Standing

Rule = Callable[[Sequence[float | None], int], tuple[float, ...]]
"""(a group's rewards, its seed) -> advantages: `gyre.rl.advantages.rule`."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the log says about one execution."""

    execution: str
    group: str
    index: int
    task: str
    state: StateRef | None = None
    ended: int = 0
    """Sequence of its end; 0 before."""
    standing: Standing | None = None
    """None until its reward is settled."""
    reward: float | None = None

    @property
    def assessable(self) -> bool:
        """Whether its reward is settled and it left a state that can be scored again."""
        return self.standing is not None and self.state is not None


@dataclass(slots=True)
class Facts:
    """All executions of a run, in the order of their dispatch; `take` folds the log into it."""

    executions: dict[str, Known] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Executions of each group, by its id."""

    def take(self, sequence: int, event: Event) -> None:
        """Fold one event; the first word about an execution's end and reward stands."""
        if isinstance(event, GroupDispatched):
            self.sizes.setdefault(event.group, event.executions)
        elif isinstance(event, ExecutionDispatched):
            known = Known(event.execution, event.group, event.index, event.task)
            self.executions.setdefault(event.execution, known)
        elif not isinstance(event, ExecutionTerminated | RewardAssigned | RewardUnresolved):
            return
        elif before := self.executions.get(event.execution):
            self.executions[event.execution] = _with(before, sequence, event)

    def peers(self, group: str) -> tuple[Known, ...]:
        """The executions of a group, by their place in it; () unless all of them are settled."""
        members = sorted((each for each in self.executions.values() if each.group == group), key=lambda m: m.index)
        whole = len(members) == self.sizes.get(group) and all(each.standing for each in members)
        return tuple(members) if whole else ()


def _with(known: Known, sequence: int, event: ExecutionTerminated | RewardAssigned | RewardUnresolved) -> Known:
    if isinstance(event, ExecutionTerminated):
        return known if known.ended else replace(known, state=event.state, task=event.task, ended=sequence)
    if known.standing is not None:
        return known
    if isinstance(event, RewardUnresolved):
        return replace(known, standing="excluded")
    return replace(known, standing="placeholder" if event.placeholder else "valid", reward=event.reward)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A group's rewards and what comes of them."""

    rewards: tuple[float | None, ...]
    """(N,), None for the excluded."""
    advantages: tuple[float, ...]
    """(N,), dimensionless."""

    @property
    def mean(self) -> float | None:
        """Of the counted rewards; None without any."""
        counted = [reward for reward in self.rewards if reward is not None]
        return statistics.fmean(counted) if counted else None

    @property
    def std(self) -> float | None:
        """Population standard deviation of the counted rewards; None without any."""
        counted = [reward for reward in self.rewards if reward is not None]
        return statistics.pstdev(counted) if counted else None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group whose statistics would be others."""

    group: str
    executions: tuple[str, ...]
    """(N,), by their place in the group."""
    before: Statistics
    after: Statistics


def changes(facts: Facts, found: Mapping[str, float | None]) -> tuple[RewardChange, ...]:
    """The executions whose found score differs from their reward, in the order of dispatch.

    Args:
        facts: of the run.
        found: execution -> its score, None where the evaluator found no valid one: that says nothing of its reward.
    """
    return tuple(
        RewardChange(execution=each.execution, group=each.group, old=each.reward, new=score)
        for each in facts.executions.values()
        if (score := found.get(each.execution)) is not None and score != each.reward
    )


def group_changes(
    facts: Facts, found: Mapping[str, float | None], changed: Iterable[RewardChange], rule: Rule, seed: int
) -> tuple[GroupChange, ...]:
    """The groups with a changed execution, as they were admitted and as they would be; unsettled ones are left out.

    Args:
        facts: of the run.
        found: see `changes`.
        changed: what `changes` gave.
        rule: of the run.
        seed: of the run; each group's own is derived as admission derives it.
    """
    result: list[GroupChange] = []
    for group in dict.fromkeys(each.group for each in changed):
        members = facts.peers(group)
        if not members:
            continue
        before = tuple(each.reward for each in members)
        scores = ((found.get(each.execution), each.reward) for each in members)
        after = tuple(reward if score is None else score for score, reward in scores)
        own = seed_of(seed, group)
        names = tuple(each.execution for each in members)
        told = (Statistics(rewards, rule(rewards, own)) for rewards in (before, after))
        result.append(GroupChange(group, names, *told))
    return tuple(result)
