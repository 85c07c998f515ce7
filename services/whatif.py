"""A recorded run told again in virtual time, as it was or under other settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from gyre.config import Config
from gyre.config_file import read_table
from gyre.core.simulation.outcome import Outcome
from gyre.core.simulation.setting import Setting
from gyre.core.simulation.trace import Replayed, Trace, fit_relief
from gyre.core.simulation.trace_fold import TraceFold
from gyre.core.simulation.world import Watch, simulate
from gyre.errors import GyreError
from schemas.base import ints
from schemas.calls import ModelCallRecorded
from schemas.runs import RunStarted
from services.source import Source, messages

CALIBRATED = 1 / 3
"""Share of the recorded steps that the model's durations are taken from."""
NANO = 1e-9


@dataclass(frozen=True, slots=True)
class Past:
    """A recorded run, as far as a simulation needs it."""

    run: str
    started: RunStarted
    trace: Trace
    calibrated: int
    """Steps that durations are taken from."""
    relief: float
    """How engines speed up as they empty, as its calls show it: see `Setting`."""

    @property
    def until(self) -> float:
        """When the last of those steps was done, seconds of the trace."""
        return self.trace.updates[self.calibrated - 1]


async def read_past(source: Source) -> Past:
    """Fold a run's log. Raises `GyreError` when it has not done a step."""
    fold = TraceFold()
    async for stored in messages(source.ev):
        if stored.commit is not None:
            for event in stored.commit.events:
                fold.add(stored.commit.time * NANO, event)
    trace = fold.trace()
    if not trace.updates:
        raise GyreError(f"{source.run}: has not done a step yet; nothing can be learnt from it")
    calibrated = ceil(len(trace.updates) * CALIBRATED)
    relief = fit_relief(await _calls(source, trace, trace.updates[calibrated - 1]))
    return Past(source.run, await source.started(), trace, calibrated, relief)


async def _calls(source: Source, trace: Trace, until: float) -> list[tuple[float, float]]:
    """(load half-way through it, seconds a token) of each call answered by then."""
    found: list[tuple[float, float]] = []
    async for stored in messages(source.calls):
        if stored.commit is None:  # malformed: it tells of no call, and those behind it still do
            continue
        ended = stored.commit.time * NANO - trace.zero
        if ended > until:
            break
        calls = (event for event in stored.commit.events if isinstance(event, ModelCallRecorded) and event.output_ids)
        found.extend(
            (trace.load_at(ended - call.engine_seconds / 2), call.engine_seconds / len(ints(call.output_ids)))
            for call in calls
        )
    return found


def retell(past: Past, settings: Sequence[str], relief: float | None = None, watch: Watch | None = None) -> Outcome:
    """Simulate a recorded run, with durations from its calibrated part and `relief` instead of the measured one.

    Raises:
        ConfigError: a setting that cannot be kept.
        SimulationStuck: the schedule can never end.
    """
    config = Config.recorded(merged(past.started.config, read_table(None, settings)))
    eased = past.relief if relief is None else relief
    setting = Setting(
        plan=config.plan(past.started.tasks),
        capacity=config.cells.concurrency,
        relief=eased,
        timings=past.trace.timings(past.until),
    )
    return simulate(setting, Replayed(past.trace, eased, past.until), watch)


def report(past: Past, outcome: Outcome, settings: Sequence[str]) -> dict[str, Any]:
    """Step times beside the recorded ones, seconds, and how far off they are: where the model was calibrated and after.

    The executions and micro-steps of the whole trace are told again: they are the workload. How long everything takes
    that the workload does not say comes from the steps it was calibrated on alone.
    """
    recorded = step_seconds(past.trace.updates, past.trace.began)
    simulated = step_seconds(outcome.updates, 0.0)
    pairs = list(zip(recorded, simulated, strict=False))
    return {
        "run": past.run,
        "settings": list(settings),
        "calibrated_on": past.calibrated,
        "relief": past.relief,
        "steps": [
            {"step": place, "recorded": one, "simulated": other} for place, (one, other) in enumerate(pairs, start=1)
        ],
        "unseen": list(past.trace.unseen(past.until)),
        "in_sample": _errors(pairs[: past.calibrated]),
        "held_out": _errors(pairs[past.calibrated :]),
        "simulated_seconds": outcome.seconds,
        "staleness": outcome.mean_staleness,
    }


def step_seconds(updates: Sequence[float], began: float) -> list[float]:
    """What each step took, from the update before it."""
    return [now - before for before, now in zip((began, *updates), updates, strict=False)]


def merged(table: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A configuration's table with the sections of another put over it."""
    sections = {
        name: {**table.get(name, {}), **section} for name, section in other.items() if isinstance(section, dict)
    }
    return table | other | sections


def _errors(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of (recorded, simulated) step times: both means, how far these are apart, and how far a step is on average."""
    if not pairs:
        return {"steps": 0}
    was, now = fmean(one for one, _ in pairs), fmean(other for _, other in pairs)
    return {
        "steps": len(pairs),
        "recorded_step_seconds": was,
        "simulated_step_seconds": now,
        "error_percent": 100.0 * (now / was - 1.0),
        "step_error_percent": 100.0 * fmean(abs(other / one - 1.0) for one, other in pairs),
    }
