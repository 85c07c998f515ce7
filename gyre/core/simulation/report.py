"""Simulated runs beside what the paper measured: means over seeds, residuals, and which orderings broke."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, stdev

from gyre.core.simulation.outcome import Outcome

HOUR = 3600.0
CLEARLY = 0.05
"""Rows of the paper that differ by more have to come in the same order."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row of Table 1, simulated over seeds."""

    paper_hours: float
    hours: float
    """Mean time of the last update."""
    sd: float
    """Standard deviation over seeds, hours; 0 for a single one."""
    ratio_to_E0: float  # noqa: N815 - E0 is the row's name
    """0 where E0 was not simulated."""
    staleness: float
    """Mean over consumed groups and seeds, training steps."""

    @property
    def residual(self) -> float:
        """(simulated - published) / published."""
        return self.hours / self.paper_hours - 1.0


@dataclass(frozen=True, slots=True)
class Speedup:
    """How much faster the elastic schedule is than a baseline after so many steps."""

    dataset: str
    staleness: float
    """E[d]"""
    baseline: str
    step: int
    paper: float
    simulated: float

    @property
    def residual(self) -> float:
        """(simulated - published) / published."""
        return self.simulated / self.paper - 1.0


def row_results(found: Mapping[str, Sequence[Outcome]], published: Mapping[str, float]) -> dict[str, RowResult]:
    """Each row's result, in the order of `found`; `published` in hours."""
    hours = {name: [outcome.updates[-1] / HOUR for outcome in outcomes] for name, outcomes in found.items()}
    base = fmean(hours["E0"]) if "E0" in hours else 0.0
    return {
        name: RowResult(
            paper_hours=published[name],
            hours=fmean(values),
            sd=stdev(values) if len(values) > 1 else 0.0,
            ratio_to_E0=fmean(values) / base if base else 0.0,
            staleness=fmean(outcome.mean_staleness for outcome in found[name]),
        )
        for name, values in hours.items()
    }


def speedup(baseline: Sequence[Outcome], elastic: Sequence[Outcome], step: int) -> float:
    """Cumulative time of the baseline over that of the elastic schedule, each the mean over seeds."""
    slow, fast = (fmean(outcome.updates[step - 1] for outcome in outcomes) for outcomes in (baseline, elastic))
    return slow / fast


def rms_percent(residuals: Sequence[float]) -> float:
    """Root mean square of relative residuals, percent."""
    return 100.0 * sqrt(fmean(residual * residual for residual in residuals))


def broken_orderings(rows: Mapping[str, RowResult]) -> list[tuple[str, str]]:
    """Pairs (faster, slower) of the paper, more than 5 % apart, that the simulation does not order so."""
    pairs = (sorted(pair, key=lambda name: rows[name].paper_hours) for pair in combinations(rows, 2))
    return [
        (fast, slow)
        for fast, slow in pairs
        if rows[slow].paper_hours > (1.0 + CLEARLY) * rows[fast].paper_hours and rows[slow].hours <= rows[fast].hours
    ]
