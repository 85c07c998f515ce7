"""All that a run's log says of one execution, for commands that look into it."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bus import subjects
from bus.log import ReadLog
from gyre.core import tree as trees
from gyre.core.fates import Standing
from gyre.core.leaves import summaries
from gyre.errors import GyreError
from gyre.models.load import ModelError, find_model
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import TemplateUnusable
from schemas.calls import DeliveryCorrected, HistoryRejected, ModelCallRecorded, RecordsSealed
from schemas.dispatch import ExecutionDispatched
from schemas.envelope import Event
from schemas.rewards import GroupReady, LeafSummary, RewardAssigned, RewardUnresolved, TreeBuilt
from schemas.training import ExecutionMasked, ExecutionStats, GroupAssigned, MicroStepCompleted, TrajectoriesAdmitted
from services.source import Source, messages

SERVICES = ("proxy", "builder", "evaluator", "admission")
"""Who speaks about an execution and its calls."""

Kind = TypeVar("Kind", bound=Event)


class ExecutionNotFound(GyreError):
    """The run's log says nothing of such an execution."""


@dataclass(frozen=True, slots=True)
class Said:
    """An event with its place in a log."""

    sequence: int
    time: int
    """UTC nanoseconds."""
    event: Event


@dataclass(frozen=True, slots=True)
class Facts:
    """One execution: what CALL holds of it, in its order and up to the seal, and what was said of it in EV."""

    execution: str
    calls: tuple[Said, ...]
    said: tuple[Said, ...]
    held_out: bool
    """Whether it is an episode of an evaluation: measured, never trained on."""
    surplus: bool = False
    """Whether its group closed with others, which were scored before it."""

    @property
    def records(self) -> tuple[ModelCallRecorded, ...]:
        """The request records, each with what became of its answer in the end."""
        events = [each.event for each in self.calls]
        became = {event.call: event.delivered for event in events if isinstance(event, DeliveryCorrected)}
        records = [event for event in events if isinstance(event, ModelCallRecorded)]
        return tuple(
            record.model_copy(update={"delivered": became[record.call]}) if record.call in became else record
            for record in records
        )

    def first(self, kind: type[Kind]) -> Kind | None:
        """What was said first of this kind: it stands."""
        return next((each.event for each in self.said if isinstance(each.event, kind)), None)

    def every(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """All that was said of this kind, in the order of the log."""
        return tuple(each.event for each in self.said if isinstance(each.event, kind))

    def tree(self) -> trees.Tree:
        """The tree that CALL alone gives."""
        return trees.fold(self.execution, (each.event for each in self.calls if isinstance(each.event, trees.Called)))

    def leaves(self, built: trees.Tree) -> tuple[LeafSummary, ...]:
        """Its leaves with their roles: those that admission drew from, if this is the tree that was recorded."""
        recorded = self.first(TreeBuilt)
        if recorded is None or recorded.digest != trees.digest(built):
            return summaries(built)
        return recorded.leaves if all(each.leaf in built.nodes for each in recorded.leaves) else summaries(built)

    def rejected(self, built: trees.Tree) -> list[dict[str, str]]:
        """Calls that are no nodes, with the reason: in CALL but not on the tree, or refused before they were drawn."""
        unfit = (record for record in self.records if record.call in built.rejected)
        refused = (each.event for each in self.said if isinstance(each.event, HistoryRejected))
        return [
            *({"call": record.call, "reason": _unfit(record, built)} for record in unfit),
            *({"call": event.call, "reason": event.reason} for event in refused),
        ]

    @property
    def standing(self) -> Standing:
        """How far admission is with it."""
        reward = self.first(RewardAssigned)
        if self.held_out:
            return "held out"
        if self.surplus:
            return "surplus"
        if reward is not None and reward.placeholder:
            return "placeholder"
        if self.first(RewardUnresolved) is not None:
            return "excluded"
        if self.first(TrajectoriesAdmitted) is not None:
            return "drawn"
        if self.first(RecordsSealed) is None:
            return "open"
        return "unscored" if reward is None else "waiting"


async def facts_of(source: Source, execution: str) -> Facts:
    """Read what the log says now. Raises ExecutionNotFound when it says nothing of such an execution."""
    try:
        about = [subjects.ev(source.run, service, "execution", execution) for service in SERVICES]
        about += [subjects.ev(source.run, "evaluator", "assess", execution)]
        about += [subjects.below(source.run, "evaluator", "beside", execution)]
        evaluation = execution.rpartition("-")[0] or execution
        held_out = await source.ev.last(subjects.ev(source.run, "scheduler", "evaluation", evaluation)) is not None
        records = [each async for each in _read(source.calls, subjects.call(source.run, execution))]
    except ValueError as error:
        raise ExecutionNotFound(f"execution {execution}: is no id of an execution ({error})") from error
    said = [each for subject in about for each in [one async for one in _read(source.ev, subject)]]
    if not records and not said:
        raise ExecutionNotFound(f"execution {execution}: run {source.run} knows none; {await _some(source)}")
    said.sort(key=lambda each: each.sequence)
    seal = next((each.event for each in said if isinstance(each.event, RecordsSealed)), None)
    sealed = [each for each in records if seal is None or each.sequence <= seal.last_sequence]
    return Facts(execution, tuple(sealed), tuple(said), held_out, await _closed_without(source, execution))


async def _closed_without(source: Source, execution: str) -> bool:
    """Whether its group is ready, and it is none of those that make it up."""
    dispatched = await source.ev.last(subjects.ev(source.run, "scheduler", "execution", execution, "dispatched"))
    entry = dispatched.commit.events[0] if dispatched and dispatched.commit else None
    if not isinstance(entry, ExecutionDispatched):
        return False
    closed = subjects.ev(source.run, "admission", "group", entry.group)
    outcomes = [each.event.outcomes async for each in _read(source.ev, closed) if isinstance(each.event, GroupReady)]
    return bool(outcomes) and execution not in {each.execution for each in outcomes[0]}


@dataclass(frozen=True, slots=True)
class Training:
    """What a step did with an execution."""

    step: int
    ratio: float | None
    """s_i; None while no micro-step with its targets is completed."""
    mask: int | None
    """m_i: 0 where the ratio lay beyond the bounds, and nothing of the execution moved a weight."""


async def training_of(source: Source, facts: Facts) -> Training | None:
    """In which step an execution's group was trained and how its ratio came out; None before its group is assigned."""
    admitted = facts.first(TrajectoriesAdmitted)
    if admitted is None:
        return None
    step = 0
    decided: dict[int, ExecutionMasked] = {}
    async for each in _read(source.ev, subjects.below(source.run, "packer", "batch")):
        match each.event:
            case GroupAssigned(group=admitted.group):
                step = each.event.step
            case ExecutionMasked(execution=facts.execution):
                decided[each.event.step] = each.event
    if not step:
        return None
    found = decided.get(step) or await _measured(source, facts.execution, step)
    return Training(step, found.ratio if found else None, found.mask if found else None)


def chat_model(model: str) -> ChatModel | None:
    """What turns tokens into text, if the run's model is here; an archive may come from elsewhere."""
    try:
        return ChatModel.load(Path(find_model(model)))
    except (ModelError, TemplateUnusable):
        return None


async def _measured(source: Source, execution: str, step: int) -> ExecutionStats | None:
    async for each in _read(source.ev, subjects.below(source.run, "cell", "step", step)):
        stats: Iterable[ExecutionStats] = each.event.stats if isinstance(each.event, MicroStepCompleted) else ()
        for found in stats:
            if found.execution == execution:
                return found
    return None


async def _read(log: ReadLog, subject: str) -> AsyncGenerator[Said, None]:
    async for stored in messages(log, filter=subject):
        if stored.commit is not None:
            for event in stored.commit.events:
                yield Said(stored.sequence, stored.commit.time, event)


async def _some(source: Source) -> str:
    """An execution that there is, as a hint."""
    head = await source.calls.head()
    newest = await source.calls.get(head) if head else None
    if newest is None:
        return "no call is recorded yet"
    return f"the newest with a call is {subjects.parse(newest.subject).entity[0]}"


def _unfit(record: ModelCallRecorded, built: trees.Tree) -> str:
    parent = built.nodes.get(record.parent or "")
    if parent is None and record.parent is not None:
        return f"parent {record.parent} is no node of the tree"
    there = parent.length if parent else 0
    return f"prefix_tokens = {record.prefix_tokens}, but its parent's path has {there}"
