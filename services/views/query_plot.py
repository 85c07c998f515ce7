"""An answer of the warehouse as a picture: its first column across, each number beside it in a panel of its own.

A histogram (columns low, high) is bars as wide as its bins; names are bars in a row; numbers are lines.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.views.pictures import PlotError

WIDTH, PANEL, DPI = 9.0, 1.8, 120
"""Inches, inches, pixels in an inch."""
PANELS = 8
"""Most columns that are drawn."""
COLOUR = "#0072B2"
Column = Sequence[Any]


def save(found: Mapping[str, Any], out: Path, title: str) -> None:
    """Write the picture of an answer in ClickHouse's JSONCompact. Raises `PlotError` where there is nothing to draw."""
    figure(found, title).savefig(out, dpi=DPI)


def figure(found: Mapping[str, Any], title: str) -> Figure:
    """The picture, a panel for each column of numbers."""
    names = [column["name"] for column in found["meta"]]
    columns: dict[str, Column] = dict(zip(names, zip(*found["data"], strict=True), strict=False))
    drawn = [name for name in columns if name not in (names[0], "high") and _is_numeric(columns[name])][:PANELS]
    if not drawn:
        raise PlotError(f"{title}: its answer has no row with a number beside its first column, so nothing is drawn")
    picture = Figure(figsize=(WIDTH, PANEL * len(drawn) + 0.8), layout="constrained")
    panels = picture.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, drawn, strict=True):
        _draw(axes, columns, names[0], name)
    panels[-1].set_xlabel(names[0])
    picture.suptitle(title, fontsize=11)
    return picture


def _draw(axes: Axes, columns: Mapping[str, Column], across: str, name: str) -> None:
    x, y = columns[across], [float("nan") if value is None else value for value in columns[name]]
    if across == "low" and "high" in columns:
        axes.bar(
            x, y, width=[high - low for low, high in zip(x, columns["high"], strict=True)], align="edge", color=COLOUR
        )
    elif _is_numeric(x):
        axes.plot([float("nan") if value is None else value for value in x], y, color=COLOUR, marker="o", markersize=3)
    else:
        axes.bar([str(value) for value in x], y, color=COLOUR)
        axes.tick_params(axis="x", labelrotation=30)
    axes.set_ylabel(name, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _is_numeric(column: Column) -> bool:
    known = [value for value in column if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)
