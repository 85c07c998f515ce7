"""A named point ends the process that reaches it, once a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services import failpoints
from services.failpoints import VARIABLE, UnknownFailpoint
from tests.core.facts import stepped

ROOT = Path(__file__).parents[2]


def fate(folder: Path, armed: str, words: str) -> int:
    """How a process ends that does so."""
    code = f"from pathlib import Path; from services import failpoints; from tests.core import facts; {words}"
    command = [sys.executable, "-c", code.replace("FOLDER", f"Path({str(folder)!r})")]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {VARIABLE: armed}, check=False).returncode


def test_an_armed_point_kills_whoever_comes_first_and_nobody_after(tmp_path: Path) -> None:
    reach = "failpoints.reach(FOLDER, 'stepped')"
    assert fate(tmp_path, "reduced", reach) == 0
    assert fate(tmp_path, "reduced, stepped", reach) == -signal.SIGKILL
    assert [each.name for each in failpoints.marks(tmp_path).iterdir()] == ["stepped"]
    assert fate(tmp_path, "reduced, stepped", reach) == 0


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("claimed", "facts.claimed(1, 0, 0, 'i')"),
        ("completed", "facts.completed(1, 0, 0, 'i', 1)"),
        ("committed", "facts.stepped(1)"),
    ],
)
def test_what_is_said_reaches_the_point_of_its_kind(tmp_path: Path, name: str, event: str) -> None:
    told = f"failpoints.said(FOLDER, (facts.registered(0, 'i'),)); failpoints.said(FOLDER, ({event},))"
    assert fate(tmp_path, name, told) == -signal.SIGKILL


def test_without_the_variable_nothing_happens_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    failpoints.said(tmp_path, (stepped(1),))
    failpoints.reach(tmp_path, "half_published")
    assert list(tmp_path.iterdir()) == []


def test_a_point_that_there_is_none_of_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "claimed,stept")
    with pytest.raises(UnknownFailpoint, match=r"GYRE_FAILPOINTS = stept: no such point; there are half_dispatched, "):
        failpoints.reach(tmp_path, "claimed")
