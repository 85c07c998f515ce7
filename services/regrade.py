"""`gyre regrade`: score the states that a run preserved once more, and say what would be otherwise.

What is found is said beside the rewards, as assessments that are not designated: a reward that was assigned is a fact,
so a live run does not notice. A scoring is named by its evaluator and the digest of all that decides its scores;
what the log says under that name is not scored again, so an interrupted regrade is taken up where it ended.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus import subjects
from bus.log import BusPort
from gyre.config import Config
from gyre.config_file import read_table
from gyre.core.regrading import Facts, GroupChange, Known, changes, group_changes
from gyre.evaluators.template import scoring_name
from gyre.rl import advantages
from gyre.tasks.folder import Task, load_tasks
from gyre.tasks.sources import bring
from schemas.rewards import RegradeStarted, RewardChange
from services.grading import Scorer
from services.judges import absent_file, absent_program, judges_of
from services.place import Place
from services.regrading import RegradeError, Regrading, Said, Shown
from services.source import messages


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be scored, by what."""

    command: str | None = None
    """Runs instead of the tasks' own tests, see `gyre.evaluators.template`."""
    task: str | None = None
    """Only executions of this task."""
    tasks: Path | None = None
    """Folder of tasks whose tests score, instead of the run's own copy."""
    again: bool = False
    """Score also what this evaluator scored already."""
    jobs: int = 2
    """States at a time."""
    settings: tuple[str, ...] = ()
    """Overrides of the run's [evaluator] and [sandbox], as `evaluator.kind=judge`."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a regrade found."""

    regrade: str
    evaluator: str
    digest: str
    states: tuple[Known, ...]
    """What was to be scored, in the order of dispatch."""
    found: Mapping[str, float | None]
    """Execution -> score; None where the evaluator found no valid one."""
    reasons: Mapping[str, str]
    """Execution -> what the evaluator said last."""
    changed: tuple[RewardChange, ...]
    groups: tuple[GroupChange, ...]
    unassessable: int
    """Executions that left nothing to score."""
    waiting: int
    """Executions whose reward is not settled yet: they are not touched."""
    new: int
    """Assessments that this regrade added to the log."""


async def regrade(place: Place, bus: BusPort, wish: Wish, shown: Shown = lambda _, __: None) -> Report:
    """Score what is not scored yet, say it, and say what changes.

    Args:
        place: of this process, an evaluator.
        bus: of the run.
        wish: what to score, by what.
        shown: told of each state that is dealt with.

    Raises:
        RegradeError, EvaluatorError, TaskError: one line with the way out.
        BusError: the log cannot be written; what was said stands, and the same command goes on from there.
    """
    with _tasks(place, wish) as tasks:
        return await _regraded(place, bus, wish, shown, tasks)


@contextlib.contextmanager
def _tasks(place: Place, wish: Wish) -> Iterator[tuple[Task, ...]]:
    """The run's own, or those of a folder in any layout."""
    if wish.tasks is None:
        yield load_tasks(place.folder / "tasks/train")
        return
    with tempfile.TemporaryDirectory(prefix="gyre-tasks-") as name:
        yield bring(str(wish.tasks), Path(name) / "tasks")


async def _regraded(place: Place, bus: BusPort, wish: Wish, shown: Shown, tasks: tuple[Task, ...]) -> Report:
    config = _config(place.config, wish)
    absent = absent_program(config, tasks)
    if config.evaluator.command != place.config.evaluator.command:  # the run's own graded: its files are somewhere
        absent = absent or absent_file(config, tasks)
    if absent:
        named = "evaluator.command" if wish.command is None else "--evaluator"
        raise RegradeError(f"{named} {absent}; install it, or give its path")
    judges = judges_of(config, place.folder)
    evaluator = judges.designated
    facts, head = await read_facts(bus, place.run)
    chosen = _chosen(facts, wish.task)
    digest = evaluator.digest(tasks)
    name, said = _named(await read_said(bus, place.run), scoring_name(evaluator.kind, digest), wish.again)
    setup = place.config.evaluator.setup_seconds
    scorer = Scorer(bus.blobs, {task.name: task for task in tasks}, evaluator, setup)
    states = tuple(known for known in chosen if known.assessable)
    started = RegradeStarted(regrade=name, evaluator=evaluator.title, digest=digest)
    work = Regrading(place, bus, scorer, started, said, head)
    try:
        await work.run(states, wish.jobs, shown)
    finally:
        await judges.close()
    await work.complete(facts)
    return _report(place, work, facts, chosen, states)


async def read_facts(bus: BusPort, run: str) -> tuple[Facts, int]:
    """What the log says about executions and rewards now, and its last sequence; large bodies are passed by."""
    facts, head = Facts(), await bus.ev.head()
    groups = f"{subjects.ev(run, 'scheduler', 'group')}.*"
    rewards = f"{subjects.ev(run, 'evaluator', 'execution')}.*"
    for about in (groups, subjects.executions(run), rewards):
        async for stored in messages(bus.ev, until=head, filter=about):
            for event in stored.commit.events if stored.commit else ():
                facts.take(stored.sequence, event)
    return facts, head


async def read_said(bus: BusPort, run: str) -> dict[str, Said]:
    """What the log says of regrades, by name."""
    found: dict[str, Said] = {}
    async for stored in messages(bus.ev, filter=f"{subjects.ev(run, 'evaluator', 'regrade')}.>"):
        name = subjects.parse(stored.subject).entity[1]
        for event in stored.commit.events if stored.commit else ():
            found.setdefault(name, Said()).note(stored.sequence, event)
    return found


def _chosen(facts: Facts, task: str | None) -> tuple[Known, ...]:
    chosen = tuple(known for known in facts.executions.values() if task in (None, known.task))
    if task is not None and not chosen:
        tasks = sorted({known.task for known in facts.executions.values()})
        few = ", ".join(tasks[:5]) + (", ..." if len(tasks) > 5 else "")  # noqa: PLR2004 - enough to see their form
        raise RegradeError(f"--task {task}: no execution of this run had it; it had {few or 'none yet'}")
    return chosen


def _config(config: Config, wish: Wish) -> Config:
    """The run's, with another evaluator where one is wished for; nobody else is heard. Raises ConfigError."""
    table = config.table()
    wished = read_table(None, wish.settings)
    if others := ", ".join(sorted(wished.keys() - {"evaluator", "sandbox"})):
        raise RegradeError(f"--set {others}: what was done is done; only evaluator.* and sandbox.* may be others")
    if wish.command is not None:
        wished["evaluator"] = {**wished.get("evaluator", {}), "kind": "command", "command": wish.command}
    for section, fields in wished.items():
        table[section] = _merged(table[section], fields)
    table["evaluator"]["beside"] = []
    return Config.of(table, "--set")


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _named(said: Mapping[str, Said], base: str, again: bool) -> tuple[str, Said]:
    """The last scoring of this evaluator, or the next one: base, base-2, base-3, ..."""
    number = 1
    while (name := base if number == 1 else f"{base}-{number}") in said:
        number += 1
    if again or number == 1:
        return name, Said()
    name = base if number == 2 else f"{base}-{number - 1}"  # noqa: PLR2004 - the first has no number
    return name, said[name]


def _report(
    place: Place, work: Regrading, facts: Facts, chosen: tuple[Known, ...], states: tuple[Known, ...]
) -> Report:
    every, objective = work.found(), place.config.objective
    found = {known.execution: every[known.execution] for known in states}
    changed = changes(facts, found)
    rule = advantages.rule(objective.advantage, shuffle=objective.shuffle_advantages)
    return Report(
        regrade=work.started.regrade,
        evaluator=work.started.evaluator,
        digest=work.started.digest,
        states=states,
        found=found,
        reasons={known.execution: work.said.attempts[known.execution][-1].detail for known in states},
        changed=changed,
        groups=group_changes(facts, found, changed, rule, place.config.run.seed),
        unassessable=sum(known.standing is not None and known.state is None for known in chosen),
        waiting=sum(known.standing is None for known in chosen),
        new=work.new,
    )
