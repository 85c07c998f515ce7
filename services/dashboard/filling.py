"""Rows of a large archive without reading its log: its columns are asked, in SQL, for what they have worked out.

Executions, groups and micro-steps come as rows; the few events that tell of cells, steps and publications come as they
were said and go the way of the log. Time and memory depend on how many executions there are, not on how many calls
they made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from bus.archive_file import summary
from schemas.envelope import EVENT, Event
from services.dashboard.rows import Change, known, row, upsert

LARGE = 200_000
"""Messages of EV beyond which an archive's columns are asked instead of its log being read."""
_FORM = "JSONCompactEachRow"
_EXECUTIONS = """
SELECT e.execution, e.group, e.task, e.version, e.dispatched_at, e.launched_at, e.terminated_at, e.graded_at,
    e.admitted_at, nullIf(e.reason, ''), nullIf(e.stage, ''), if(e.terminated_at IS NULL, NULL, e.detail),
    e.seconds, e.reward, if(e.reward IS NULL, NULL, toUInt8(e.placeholder)),
    if(e.graded_at IS NULL, NULL, toUInt8(e.excluded)), if(e.sealed_at IS NULL, NULL, e.calls),
    if(t.execution = '', NULL, t.leaves), if(t.execution = '', NULL, t.longest), e.targets, e.advantage,
    if(r.execution = '', NULL, r.cell)
FROM executions AS e LEFT JOIN trees AS t ON t.run = e.run AND t.execution = e.execution
LEFT JOIN (
    SELECT run, execution, argMax(if(type = 'RouteMoved', to_cell, cell), (sequence, index)) AS cell
    FROM facts WHERE type IN ('RouteAssigned', 'RouteMoved') GROUP BY run, execution
) AS r ON r.run = e.run AND r.execution = e.execution
WHERE e.run = {run:String} ORDER BY e.dispatched_at, e.execution
"""
_EXECUTION = (
    "group_id", "task", "version", "dispatched_at", "launched_at", "terminated_at", "graded_at", "admitted_at",
    "reason", "stage", "detail", "seconds", "reward", "placeholder", "excluded", "calls", "leaves", "tokens",
    "targets", "advantage", "cell",
)  # fmt: skip
_GROUPS = """
SELECT g.group, g.index, g.task, g.version, g.executions + s.surplus, g.dispatched_at, g.ready_at, g.assigned_at,
    g.step, g.staleness, if(g.ready_at IS NULL, NULL, g.scored), g.mean, if(g.scored > 0, arrayMin(g.rewards), NULL),
    if(g.scored > 0, if(g.spread > 0, arrayMax(g.rewards), arrayMin(g.rewards)), NULL)
FROM groups AS g LEFT JOIN (
    SELECT run, group, JSONExtractUInt(text, 'surplus') AS surplus FROM stored WHERE type = 'GroupDispatched'
) AS s ON s.run = g.run AND s.group = g.group
WHERE g.run = {run:String} ORDER BY g.index
"""
_GROUP = (
    "place", "task", "version", "executions", "dispatched_at", "ready_at", "assigned_at", "step", "staleness", "scored",
    "mean", "lowest", "highest",
)  # fmt: skip
_ENQUEUED = """
SELECT step, micro_step, kind, tokens, enqueued_at FROM micro_steps
WHERE run = {run:String} AND enqueued_at IS NOT NULL ORDER BY step, micro_step
"""
_CLAIMS = """
SELECT type, sequence, (ns - {zero:Int64}) / 1e9, step, micro_step, cell, claim, length(stats),
    arrayCount(mask -> mask = 0, stats.mask), if(length(stats) > 0, arrayMax(stats.max_delta_log_p), 0)
FROM facts WHERE run = {run:String} AND type IN ('MicroStepClaimed', 'MicroStepCompleted', 'MicroStepReissued')
ORDER BY sequence, index
"""
_EVALUATIONS = "SELECT version, at, mean, valid FROM evaluations WHERE run = {run:String} ORDER BY at"
_TOLD = """
SELECT sequence, ns, type, v, text FROM stored WHERE run = {run:String} AND type IN (
    'RunStarted', 'RunFinished', 'StepAborted', 'CellRegistered', 'CellLost', 'RoleTransitionRequested',
    'RoleTransitionCompleted', 'RoleTransitionFailed', 'BatchOpened', 'StreamClosed', 'ReductionOpened',
    'OptimizerStepped', 'WeightsPublished')
ORDER BY sequence, index
"""
_WHOLE = "SELECT zero, latest FROM runs WHERE run = {run:String}"
QUESTIONS = f"{_EXECUTIONS}{_GROUPS}{_ENQUEUED}{_CLAIMS}{_EVALUATIONS}{_TOLD}"
"""What rows are made by."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What an archive's columns gave."""

    zero: int
    """UTC nanoseconds of the first event, and of the latest."""
    latest: int
    head: int
    """Last sequence of EV."""
    rows: list[Change]
    told: list[tuple[int, int, Event]]
    """(sequence, UTC nanoseconds, event)."""


def is_large(target: str) -> bool:
    """Whether this is an archive whose log is better not read, and its columns can be asked. Raises `ArchiveError`."""
    return Path(target).is_file() and find_spec("chdb") is not None and summary(Path(target)).ev > LARGE


async def filled(archive: Path) -> Filled:
    """Ask an archive's columns, which are made first where there are none. Raises `ArchiveError`, `WarehouseError`."""
    from services.asking import asking

    async with asking(str(archive), archive.parent) as asked:

        async def lines(sql: str, **parameters: Any) -> list[list[Any]]:
            answer = await asked.answer(sql, parameters, _FORM)
            found: list[list[Any]] = orjson.loads(b"[%s]" % b",".join(answer.splitlines()))
            return found

        zero, latest = map(int, (await lines(_WHOLE))[0])
        rows = [
            *_table("executions", ("execution",), _EXECUTION, await lines(_EXECUTIONS)),
            *_table("groups", ("group_id",), _GROUP, await lines(_GROUPS)),
            *_table("micro_steps", ("step", "micro_step"), ("kind", "tokens", "enqueued_at"), await lines(_ENQUEUED)),
            *_claims(await lines(_CLAIMS, zero=zero)),
            *_table("evaluations", ("version",), ("at", "mean", "valid"), await lines(_EVALUATIONS)),
        ]
        told = [
            (int(sequence), int(ns), EVENT.validate_json(_said(kind, v, text)))
            for sequence, ns, kind, v, text in await lines(_TOLD)
        ]
        return Filled(zero, latest, asked.parts[0].head, rows, told)


def _said(kind: str, v: int, rest: str) -> str:
    """An event's JSON, of its type, version and what else it said."""
    more = rest.lstrip("{")
    return f'{{"type":"{kind}","v":{v}' + (more if more.startswith("}") else f",{more}")


def _table(name: str, keys: Sequence[str], columns: Sequence[str], found: list[list[Any]]) -> Iterator[Change]:
    """One statement for all rows: there are hundreds of thousands."""
    statement = upsert(name, tuple(keys), tuple(columns))
    return ((statement, tuple(values)) for values in found)


def _claims(found: list[list[Any]]) -> Iterator[Change]:
    for kind, sequence, at, step, micro_step, cell, claim, trained, masked, far in found:
        of = {"step": step, "micro_step": micro_step}
        if kind == "MicroStepClaimed":
            yield row("claims", {"sequence": int(sequence)}, {**of, "cell": cell, "claimed_at": at})
        elif kind == "MicroStepCompleted":
            done = {"completed_at": at, "trained": int(trained), "masked": int(masked), "max_delta_log_p": far}
            yield known("claims", {"sequence": int(claim)}, done)
        else:
            yield known("claims", of, {"void_at": at})
