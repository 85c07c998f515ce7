"""What any command needs that draws a picture; matplotlib is imported when one is drawn."""

from importlib.util import find_spec
from pathlib import Path

from gyre.core.timeline import Timeline
from gyre.errors import GyreError

FORMATS = (".png", ".svg", ".pdf")


class PlotError(GyreError):
    """No picture can be drawn here; one line with the way out."""


def check_picture(out: Path) -> None:
    """Whether `draw` can write there: to be asked before the work that is to be drawn. Raises `PlotError`."""
    if out.suffix not in FORMATS:
        raise PlotError(f"{out}: the ending says the format; one of {', '.join(FORMATS)}")
    if not out.absolute().parent.is_dir():
        raise PlotError(f"{out}: no such folder; make it, or write elsewhere")
    if find_spec("matplotlib") is None:
        raise PlotError("matplotlib is not installed: pip install -e '.[plot]' in gyre's folder")


def draw(timeline: Timeline, out: Path, title: str, window: tuple[float, float] | None = None) -> None:
    """Write a timeline as a picture, all of it or from..to in seconds. Raises `PlotError`, OSError."""
    check_picture(out)
    if not timeline.lanes or timeline.seconds <= 0:
        raise PlotError(f"{title}: no cell has registered yet, there is nothing to draw")
    from services.views.plotting import save

    save(timeline, out, title, window)
