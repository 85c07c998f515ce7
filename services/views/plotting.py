"""A timeline as a picture: what each cell was, the executions at large against the places for them, and use of cells.

The only module that imports matplotlib; `services.cli.plot` imports it where a picture is wanted. Colours are told
apart by people who see colours differently (Okabe and Ito's set), and differ in lightness as well.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gyre.core.timeline import STANDINGS, Interval, Lane, Standing, Timeline, Use

Window = tuple[float, float]
"""From and to, seconds since the first event."""

COLOURS: dict[Standing, tuple[str, str]] = {
    "rollout": ("#56B4E9", "rollout"),
    "train": ("#D55E00", "training"),
    "to_train": ("#F0E442", "moving to training"),
    "to_rollout": ("#009E73", "moving to rollout"),
    "lost": ("#000000", "lost"),
}
USES: tuple[tuple[str, str, Callable[[Use], float]], ...] = (
    ("#D55E00", "training", lambda use: use.train),
    ("#F3B58E", "training, waiting", lambda use: use.train_waiting),
    ("#F0E442", "moving", lambda use: use.moving),
    ("#56B4E9", "rollout, places filled", lambda use: use.rollout),
    ("#D9EEF9", "rollout, places free", lambda use: use.rollout_free),
    ("#000000", "lost", lambda use: use.lost),
)
QUEUED, WATERLEVEL, CAPACITY, EVALUATION, MARK = "#BBBBBB", "#000000", "#0072B2", "#555555", "#222222"
LineStyle = tuple[float, tuple[float, ...]]
DOTTED: LineStyle = (0, (1, 2))
SOLID: LineStyle = (0, ())
WIDTH, DPI = 12.0, 120
"""Inches, and pixels in one."""
LANE_HEIGHT, LANES_HEIGHT, PANEL_HEIGHT = 0.3, (1.0, 6.0), 2.1
"""Inches: a cell's, the least and most of all cells together, each other panel's."""
NAMED_LANES = 16
"""So many cells have each its name; of more only some have."""
MARKS = 36
"""The names of marks are at least so small a part of the picture apart."""
UNITS = ((300.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (float("inf"), 3600.0, "h"))
"""(below so many seconds, seconds in the unit, its name)."""


def save(timeline: Timeline, path: Path, title: str, window: Window | None = None) -> None:
    """Write the picture; the ending of the path says as what. Raises OSError."""
    figure(timeline, title, window).savefig(path, dpi=DPI)


def figure(timeline: Timeline, title: str, window: Window | None = None) -> Figure:
    """Three panels over one time axis: cells, executions, use of cells."""
    start, end = window or (0.0, timeline.seconds)
    second, unit = next((second, unit) for most, second, unit in UNITS if end - start < most)
    least, most = LANES_HEIGHT
    heights = [min(most, max(least, LANE_HEIGHT * len(timeline.lanes))), PANEL_HEIGHT, PANEL_HEIGHT]
    drawn = Figure(figsize=(WIDTH, sum(heights) + 1.0), layout="constrained")
    cells, executions, use = drawn.subplots(3, 1, sharex=True, height_ratios=heights)
    _draw_cells(cells, timeline.lanes, second)
    _draw_executions(executions, timeline, second, (start, end))
    _draw_use(use, timeline, second)
    for axes in (cells, executions, use):
        _mark(axes, timeline, second, named=axes is cells)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
        axes.set_xlim(start / second, end / second)
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9)
    _name_steps(cells, timeline, second, (start, end))
    use.set_xlabel(f"time since the first event ({unit})")
    drawn.suptitle(f"{title}: {summary(timeline)}", fontsize=11)
    return drawn


def summary(timeline: Timeline) -> str:
    """One line: steps, time, use, staleness."""
    second, unit = next((second, unit) for most, second, unit in UNITS if timeline.seconds < most)
    return (
        f"{len(timeline.lanes)} cells, {len(timeline.steps)} steps in {timeline.seconds / second:.4g} {unit}, "
        f"{100 * timeline.utilisation:.0f} % used, mean staleness {timeline.staleness:.3g}"
    )


def _draw_cells(axes: Axes, lanes: Sequence[Lane], second: float) -> None:
    """A row for each cell, the core on top."""
    half = 0.43 if len(lanes) <= NAMED_LANES else 0.5
    for standing in STANDINGS:
        colour, label = COLOURS[standing]
        shapes = [
            _box(each, row, half, second)
            for row, lane in enumerate(lanes)
            for each in lane.intervals
            if each.standing == standing
        ]
        if shapes:
            axes.add_collection(PolyCollection(shapes, facecolors=colour, edgecolors="none", label=label))
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    rows = range(0, len(lanes), max(1, len(lanes) // NAMED_LANES))
    axes.set_yticks(list(rows), ["core, 0" if lanes[row].cell == 0 else f"{lanes[row].cell}" for row in rows])
    axes.set_ylabel("cell")


def _box(each: Interval, row: int, half: float, second: float) -> list[tuple[float, float]]:
    left, right = each.start / second, each.end / second
    return [(left, row - half), (left, row + half), (right, row + half), (right, row - half)]


def _draw_executions(axes: Axes, timeline: Timeline, second: float, window: Window) -> None:
    """Running and queued ones, which together are w = d - f, against the places C_R."""
    levels = [*timeline.levels, timeline.levels[-1]]
    times = [*(level.seconds / second for level in timeline.levels), timeline.seconds / second]
    running, waterlevel = [level.running for level in levels], [level.waterlevel for level in levels]
    capacity = [level.capacity for level in levels]
    axes.fill_between(times, running, step="post", color=COLOURS["rollout"][0], linewidth=0, label="running, p - f")
    axes.fill_between(times, running, waterlevel, step="post", color=QUEUED, linewidth=0, label="queued, d - p")
    axes.step(times, waterlevel, where="post", color=WATERLEVEL, linewidth=1.1, label="waterlevel w = d - f")
    axes.step(times, capacity, where="post", color=CAPACITY, linewidth=1.3, linestyle=(0, (4, 2)), label="places, C_R")
    start, end = (edge / second for edge in window)
    shown = [
        max(level.waterlevel, level.capacity)
        for level, time, until in zip(levels, times, [*times[1:], times[-1]], strict=True)
        if until >= start and time <= end
    ]
    axes.set_ylim(0, 1.06 * max([1, *shown]))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylabel("executions")


def _draw_use(axes: Axes, timeline: Timeline, second: float) -> None:
    """What all cells together did, on average over short spans, in shares of the cells."""
    count = max(1, len(timeline.lanes))
    bins = timeline.use
    times = [*(use.start / second for use in bins), *(use.end / second for use in bins[-1:])]
    below = [0.0] * len(times)
    for colour, label, of in USES:
        values = [100 * of(use) / count for use in (*bins, *bins[-1:])]
        if not any(values):
            continue
        above = [low + value for low, value in zip(below, values, strict=True)]
        axes.fill_between(times, below, above, step="post", color=colour, linewidth=0, label=label)
        below = above
    axes.set_ylim(0, 100)
    axes.set_ylabel("cells (%)")


def _mark(axes: Axes, timeline: Timeline, second: float, *, named: bool) -> None:
    """Updates as thin lines, publications as strong ones, evaluations as bands; named in one legend alone."""
    published = {burst.version for burst in timeline.bursts}
    updates = [step.updated / second for step in timeline.steps if step.step not in published]
    publications = [burst.published / second for burst in timeline.bursts]
    _lines(axes, updates, "update" if named else "", 0.7, DOTTED)
    _lines(axes, publications, "publication" if named else "", 1.0, SOLID)
    for place, span in enumerate(timeline.evaluations):
        label = "evaluation" if named and place == 0 else None
        axes.axvspan(span.start / second, span.end / second, color=EVALUATION, alpha=0.25, lw=0, zorder=3, label=label)


def _lines(axes: Axes, times: Sequence[float], label: str, width: float, style: LineStyle) -> None:
    if times:
        across = axes.get_xaxis_transform()
        axes.vlines(times, 0, 1, colors=MARK, linewidths=width, linestyles=style, transform=across, label=label)


def _name_steps(axes: Axes, timeline: Timeline, second: float, window: Window) -> None:
    """Above the picture: which policy version a mark made, publications first, where there is room."""
    start, end = window
    published = {burst.version: burst.published for burst in timeline.bursts}
    times = [(step.step, published.get(step.step, step.updated)) for step in timeline.steps]
    kept: list[float] = []
    for version, time in sorted(times, key=lambda mark: mark[0] not in published):
        if not start <= time <= end or any(abs(time - other) < (end - start) / MARKS for other in kept):
            continue
        kept.append(time)
        axes.annotate(
            f"v{version}",
            (time / second, 1.0),
            (0, 3),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
