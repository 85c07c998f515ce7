"""Simulations for the command line: the paper's experiments over seeds, in as many processes as there are cores."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Any

from gyre.core.plan import Kind
from gyre.core.simulation import presets, published
from gyre.core.simulation.outcome import Outcome
from gyre.core.simulation.presets import DATASETS, HOUR, TABLE1, Case, method
from gyre.core.simulation.report import Speedup, broken_orderings, rms_percent, row_results, speedup
from gyre.core.simulation.world import Watch, simulate

METHODS: tuple[Kind, ...] = ("async", "colocate", "elastic")


def run_case(case: Case) -> Outcome:
    """Simulate one. Raises `SimulationStuck`."""
    return simulate(case.setting(), case.workload())


def run_all(cases: Sequence[Case]) -> list[Outcome]:
    """Simulate all of them, each in whichever process is free."""
    workers = min(len(cases), len(os.sched_getaffinity(0)))
    if workers <= 1:
        return [run_case(case) for case in cases]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(run_case, cases))


def table1(seeds: int, names: Sequence[str] = tuple(TABLE1)) -> dict[str, Any]:
    """Rows of Table 1 over seeds 0..seeds-1, beside the published hours."""
    cases = [Case(TABLE1[name], published.TABLE1_STEPS, seed=seed) for name in names for seed in range(seeds)]
    outcomes = run_all(cases)
    found = {name: outcomes[place * seeds : (place + 1) * seeds] for place, name in enumerate(names)}
    rows = row_results(found, published.TABLE1_HOURS)
    residuals = [row.residual for row in rows.values()]
    return {
        "preset": "table1",
        "seeds": seeds,
        "assumed": list(presets.assumptions("table1")),
        "rows": {name: asdict(row) | {"residual_percent": 100.0 * row.residual} for name, row in rows.items()},
        "rms_percent": rms_percent(residuals),
        "worst_percent": 100.0 * max(residuals, key=abs),
        "broken_orderings": broken_orderings(rows),
    }


def speedups(preset: str, paper: published.Speedups, seeds: int) -> dict[str, Any]:
    """An experiment that compares the three methods at equal E[d], beside the published speedups."""
    runs = [(dataset, staleness, kind) for dataset, staleness in paper for kind in METHODS]
    steps = max(step for baselines in paper.values() for values in baselines.values() for step in values)
    cases = [
        Case(method(kind, staleness, DATASETS[dataset].cells), steps, DATASETS[dataset], seed)
        for dataset, staleness, kind in runs
        for seed in range(seeds)
    ]
    outcomes = run_all(cases)
    found = {run: outcomes[place * seeds : (place + 1) * seeds] for place, run in enumerate(runs)}
    entries = [
        Speedup(*key, baseline, step, value, speedup(found[*key, baseline], found[*key, "elastic"], step))
        for key, baselines in paper.items()
        for baseline, values in baselines.items()
        for step, value in values.items()
    ]
    residuals = [each.residual for each in entries]
    return {
        "preset": preset,
        "seeds": seeds,
        "assumed": list(presets.assumptions(preset)),
        "speedups": [asdict(each) | {"residual_percent": 100.0 * each.residual} for each in entries],
        "rms_percent": rms_percent(residuals),
        "worst_percent": 100.0 * max(residuals, key=abs),
    }


def show(name: str, watch: Watch) -> None:
    """Let `watch` see one simulation of a row of Table 1."""
    case = Case(TABLE1[name], published.TABLE1_STEPS)
    simulate(case.setting(), case.workload(), watch)


def scale(cells: int, executions: int, watch: Watch | None = None) -> dict[str, Any]:
    """The elastic schedule on many cells, and how long seeing it through takes."""
    case = presets.scale(cells, executions)
    began = time.monotonic()
    outcome = simulate(case.setting(), case.workload(), watch)
    seconds = time.monotonic() - began
    return {
        "preset": "scale",
        "cells": cells,
        "executions": outcome.executions,
        "steps": len(outcome.updates),
        "transitions": outcome.transitions,
        "hours": outcome.seconds / HOUR,
        "staleness": outcome.mean_staleness,
        "seconds": seconds,
        "executions_per_second": outcome.executions / seconds,
    }
