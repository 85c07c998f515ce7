"""`gyre plot`: a picture of a run's log, with the figures behind it; what cannot be drawn is one line."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.text import Annotation

from gyre.core.timeline_fold import fold
from services.views.plotting import MARKS, figure
from tests.core.told import Told, a_burst, a_run, asked, moved
from tests.core.world import registered
from tests.services.conftest import Gyre, refusal


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_log_becomes_a_picture_of_the_format_that_the_ending_says(
    gyre: Gyre, told: Path, tmp_path: Path, ending: str, start: bytes
) -> None:
    result = gyre("plot", told, "--out", f"run.{ending}")
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"run.{ending}").read_bytes().startswith(start)
    assert "2 cells, 2 steps in 30.0 s" in result.stdout


def test_json_gives_the_figures_behind_the_picture(gyre: Gyre, told: Path) -> None:
    found = json.loads(gyre("plot", told, "--out", "run.png", "--from", 10, "--to", 20, "--json").stdout)
    timeline = fold(a_run())
    assert found["utilisation"] == pytest.approx(timeline.utilisation)
    assert found["cells"]["0"]["seconds"]["train"] == pytest.approx(12)
    assert (found["steps"], found["bursts"], found["step_seconds"]) == (2, 2, [pytest.approx(17), pytest.approx(10)])


def test_each_standing_of_a_cell_has_its_colour_in_the_picture() -> None:
    cells, executions, use = figure(fold(a_run()), "told").axes
    drawn = {
        str(each.get_label()): len(each.get_paths()) for each in cells.collections if isinstance(each, PolyCollection)
    }
    assert drawn == {"rollout": 4, "moving to training": 2, "training": 2, "moving to rollout": 2}
    assert [label.get_text() for label in cells.get_yticklabels()] == ["core, 0", "1"]
    assert [text.get_text() for text in cells.texts] == ["v1", "v2"]
    assert use.get_xlabel() == "time since the first event (s)"
    assert (executions.get_ylabel(), use.get_ylabel()) == ("executions", "cells (%)")


def test_a_window_shows_its_time_alone() -> None:
    cells = figure(fold(a_run()), "told", (10, 20)).axes[0]
    assert cells.get_xlim() == (10, 20)
    assert [text.get_text() for text in cells.texts] == ["v1"]


def test_many_cells_and_many_steps_keep_their_names_apart() -> None:
    told: Told = [(0, registered(cell, f"cell-{cell}")) for cell in range(64)]
    for step in range(1, 101):
        told += a_burst(3600.0 * step, step)
    told += [(400_000, asked(40, "train")), (400_001, moved(40, "train"))]
    cells, _, use = figure(fold(told), "told").axes
    places = sorted(text.xy[0] for text in cells.texts if isinstance(text, Annotation))
    assert len(places) > 5
    assert min(later - earlier for earlier, later in pairwise(places)) >= cells.get_xlim()[1] / MARKS
    assert len(cells.get_yticklabels()) <= 17
    assert use.get_xlabel().endswith("(h)")


@pytest.mark.parametrize(
    ("out", "words"), [("run.gif", "the ending says the format"), ("absent/run.png", "no such folder")]
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_log_is_read(gyre: Gyre, out: str, words: str) -> None:
    assert words in refusal(gyre("plot", "absent", "--out", out))


def test_without_matplotlib_one_line_says_how_to_get_it(
    gyre: Gyre, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refusal(gyre("plot", told, "--out", "run.png"))
    assert line == "matplotlib is not installed: pip install -e '.[plot]' in gyre's folder"


def test_a_window_without_time_and_a_run_without_cells_are_refused(gyre: Gyre, told: Path, small_run: Path) -> None:
    assert "there is no time between" in refusal(gyre("plot", told, "--out", "run.png", "--from", 40), 2)
    assert "no cell has registered yet" in refusal(gyre("plot", small_run, "--out", "run.png"))
