"""The three schedules of one configuration, one run after another, and what the simulator says of the same.

Equal cells, equal executions, equal mean staleness: async gets mu = 1 and the split that the simulator finds fastest,
colocate gets phi = 0; neither streams, as in the paper's comparison (§6.2). Compute is modelled, so that what a run
takes longer than its simulation is what its control plane takes.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.config import Config
from gyre.core.delays import Delays
from gyre.core.plan import Kind
from gyre.core.staleness import boundary_mean
from gyre.core.timeline_fold import TimelineFold
from gyre.errors import ConfigError, Problem
from schemas.dispatch import LaunchGranted
from schemas.envelope import Event
from services.counterpart import simulated
from services.setup import new_run_name
from services.source import messages, open_source
from services.train import train

BASELINES: tuple[Kind, ...] = ("async", "colocate")
KINDS: tuple[Kind, ...] = ("elastic", *BASELINES)


@dataclass(frozen=True, slots=True)
class Found:
    """What one schedule came to, from its first launch to its end."""

    seconds: float
    utilisation: float
    """Share of all cells' time in use, in [0, 1]."""
    staleness: float
    """Mean over consumed groups, training steps."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One schedule: as configured, as it ran, as simulated."""

    config: Config
    run: str
    found: Found
    simulated: Found
    delays: dict[str, dict[str, float]]
    """See `gyre.core.delays.Delays.summary`."""


Comparison = dict[Kind, Compared]


async def compare(config: Config, say: Callable[[str], None]) -> Comparison:
    """Run and simulate all three; `say` is told what comes next.

    Raises:
        ConfigError, SetupError, RunStopped, BusError: one line with the way out.
    """
    chosen = variants(config)
    expected = {kind: simulated_of(each) for kind, each in chosen.items()}
    done: Comparison = {}
    for kind, each in chosen.items():
        say(f"{kind}: {describe(each)}; simulated {expected[kind].seconds:.1f} s")
        result = await train(each)
        found, delays = await measured(Path(result["archive"]))
        done[kind] = Compared(each, result["run"], found, expected[kind], delays)
    return done


def variants(config: Config) -> dict[Kind, Config]:
    """The configuration under each schedule. Raises `ConfigError` where a baseline cannot have the same staleness."""
    schedule = config.schedule
    if schedule.kind != "elastic" or schedule.dispatch != "boundary":
        rule = 'the baselines follow from an elastic schedule; set kind = "elastic" and dispatch = "boundary"'
        raise ConfigError("", (Problem("schedule.kind", f"{schedule.kind}, {schedule.dispatch}", rule),))
    mean = boundary_mean(schedule.phi, schedule.mu)
    if not (2 * mean).is_integer():
        rule = f"E[d] = phi + (mu - 1) / 2 = {mean:g}: no colocate schedule has it; make 2 * phi whole"
        raise ConfigError("", (Problem("schedule.phi", f"{schedule.phi:g}", rule),))
    base = new_run_name(config)
    return {
        "elastic": _changed(config, base, kind="elastic"),
        "async": _best_split(_changed(config, base, 1, kind="async", phi=mean, mu=1, stream=False)),
        "colocate": _changed(config, base, kind="colocate", phi=0.0, mu=round(2 * mean) + 1, stream=False),
    }


def simulated_of(config: Config) -> Found:
    """What the simulator says of a modelled configuration. Raises `ConfigError`, `SimulationStuck`."""
    gauge = Gauge()
    simulated(config, gauge.add)
    return gauge.found()


async def measured(archive: Path) -> tuple[Found, dict[str, dict[str, float]]]:
    """What a finished run came to, and what its control plane took."""
    gauge, delays = Gauge(), Delays()
    async with open_source(str(archive), archive.parent) as source, aclosing(messages(source.ev)) as log:
        async for stored in log:
            commit = stored.commit
            if commit is None:
                continue
            for event in commit.events:
                gauge.add(commit.time / 1e9, event)
                delays.add(commit.time / 1e9, event)
    return gauge.found(), delays.summary()


class Gauge:
    """A timeline that begins at the first launch: what is before it is the start of processes, and no schedule's."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._fold = TimelineFold()
        self._zero: float | None = None

    def add(self, seconds: float, event: Event) -> None:
        """One event."""
        if self._zero is None and isinstance(event, LaunchGranted):
            self._zero = seconds
        self._fold.add(0.0 if self._zero is None else seconds - self._zero, event)

    def found(self) -> Found:
        """What it came to."""
        timeline = self._fold.timeline()
        return Found(timeline.seconds, timeline.utilisation, timeline.staleness)


def describe(config: Config) -> str:
    """What tells a variant from the others."""
    schedule = config.schedule
    split = f", {config.cells.trainers} of {config.cells.count} cells train" if config.cells.trainers else ""
    return f"phi = {schedule.phi:g}, mu = {schedule.mu}{'' if schedule.stream else ', no streaming'}{split}"


def speedups(found: dict[Kind, Found]) -> dict[str, float]:
    """How many times faster elastic is than each baseline."""
    return {kind: found[kind].seconds / found["elastic"].seconds for kind in BASELINES}


def _best_split(config: Config) -> Config:
    """A fixed partition is only as good as its split: the baseline gets the one that is fastest in simulation."""
    most = config.cells.count - (config.cells.standalone == 0)
    splits = [
        Config.of({**config.table(), "cells": {**config.table()["cells"], "trainers": count}})
        for count in range(1, most + 1)
    ]
    return min(splits, key=lambda each: simulated_of(each).seconds)


def _changed(config: Config, base: str, trainers: int = 0, **schedule: Any) -> Config:
    table = config.table()
    table["run"]["name"] = f"{base}-{schedule['kind']}"
    table["cells"]["trainers"] = trainers
    table["schedule"] |= schedule
    return Config.of(table)
