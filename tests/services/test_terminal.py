"""What a log, an evaluator or a file's name says is shown on a terminal: it is not obeyed, nor taken for a line."""

import asyncio
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from schemas.rewards import AssessmentRecorded
from services import demo
from services.cli.log import lines_of
from services.cli.regrade import assessed, draw
from services.regrade import Report
from services.source import Source
from tests.services.conftest import Gyre
from tests.services.tampered import Message, event, tampered

RUNS = Path(__file__).parents[1] / "data" / "runs"
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b2J\u202e [red]b\nforged line"
SHOWN = "a\\x1b]0;owned\\x07\\x1b[2J\\x9b2J\\u202e [red]b"
TEXTS = {"ExecutionTerminated": "detail", "AssessmentRecorded": "detail", "RewardUnresolved": "reason"}


def hostile_words(ev: list[Message], _: Any) -> None:
    """Whatever may say what it likes says so, and one message is none of ours."""
    for _, commit in ev:
        for each in commit["events"]:
            if each["type"] in TEXTS:
                each[TEXTS[each["type"]]] = HOSTILE
    event(ev, "CellRegistered")[HOSTILE] = 1


def hostile_config(ev: list[Message], _: Any) -> None:
    event(ev, "RunStarted")["config"]["schedule"][HOSTILE] = 1


def unharmed(text: str) -> bool:
    lines = text.splitlines()
    return all(line.isprintable() for line in lines) and not any(line.startswith("forged") for line in lines)


async def archived(name: str, folder: Path, change: Callable[[list[Message], Any], None]) -> Path:
    async with tampered(RUNS / f"{name}.jsonl.zst", folder, change):
        return folder / "tampered.jsonl.zst"


@pytest.mark.parametrize(
    ("name", "change", "words", "says"),
    [
        ("crashing-tests", hostile_words, ("log", "tail", "ARCHIVE", "-n", "10000"), f"reason={SHOWN}\\nforged line"),
        ("failing-harness", hostile_words, ("log", "tail", "ARCHIVE", "-n", "10000"), "malformed: events.0"),
        ("failing-harness", hostile_words, ("doctor", "ARCHIVE"), f"16 failed (16 times: {SHOWN}\\nforged line)"),
        ("crashing-tests", hostile_words, ("doctor", "ARCHIVE"), f"(4 times: {SHOWN}\\nforged line)"),
        ("failing-harness", hostile_words, ("replay", "ARCHIVE", "--verify"), "decisions decided again"),
        (
            "small",
            hostile_config,
            ("replay", "ARCHIVE", "--verify"),
            f"schedule.{SHOWN}\\nforged line = 1: unknown key",
        ),
        ("small", None, ("log", "tail", HOSTILE), f"{SHOWN}\nforged line: neither an archive"),
    ],
)
def test_what_a_command_shows_is_not_obeyed(
    gyre: Gyre, tmp_path: Path, name: str, change: Any, words: tuple[str, ...], says: str
) -> None:
    archive = asyncio.run(archived(name, tmp_path, change or (lambda _, __: None)))
    result = gyre(*(archive if word == "ARCHIVE" else word for word in words))
    assert says in result.output
    assert unharmed(result.output.replace(f"{SHOWN}\nforged line: neither", "an argument of one's own: neither"))


async def test_an_event_is_one_line_of_its_tail(small_run: Path, source: Source) -> None:
    stored = await source.ev.get(1)
    assert stored is not None
    assert stored.commit is not None
    forged = stored.commit.events[0].model_copy(update={"code_version": HOSTILE, "config": {}})
    commit = stored.commit.model_copy(update={"events": (forged,)})
    (line,) = lines_of(type(stored)(1, stored.subject, commit), as_json=False)
    assert line.isprintable()


def test_an_assessment_a_report_and_an_archive_of_any_name_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = AssessmentRecorded(
        execution="x0-0", assessment="a", attempt=1, designated=False, valid=True, score=1.0,
        state=None, seconds=1.0, branch=None, detail=HOSTILE, provenance=None,
    )  # fmt: skip
    assert f"{SHOWN}\\nforged line" in assessed(found)
    assert unharmed(assessed(found))

    page = StringIO()
    report = Report("r1", HOSTILE, "d", (), {"x0-0": None}, {"x0-0": "none"}, (), (), 0, 0, 0)
    draw(report, Console(file=page, width=60))
    assert page.getvalue().startswith(f"r1 ({SHOWN}\\nforged line): 0 states")
    assert unharmed(page.getvalue())

    counts = dict.fromkeys(("steps", "dispatched", "launched", "terminated", "micro_steps", "micro_steps_committed"), 1)
    told = {"run": "r", "rewards": [], "seconds": 1, "eval_before": None, "step_seconds": [], "staleness_mean": 0.0}
    demo.report({**told, **counts, "staleness_expected": None, "archive": HOSTILE})
    said = capsys.readouterr().out
    assert f"archive            {SHOWN}\\nforged line\n" in said
    assert unharmed(said)


@pytest.mark.parametrize(("folder", "suffix"), [("runs", ""), ("my runs", " --runs '{here}/my runs'")])
def test_what_a_report_says_to_do_next_finds_the_run_where_it_lies(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    counts = dict.fromkeys(("steps", "dispatched", "launched", "terminated", "micro_steps", "micro_steps_committed"), 1)
    told = {"run": "r", "rewards": [], "seconds": 1, "eval_before": None, "step_seconds": [], "staleness_mean": 0.0}
    demo.report({**told, **counts, "staleness_expected": None, "archive": tmp_path / folder / "r/r.jsonl.zst"})
    run = f"r{suffix.format(here=tmp_path)}"
    line = f"gyre log stats {run} · gyre replay {run} --verify · gyre tree {run} x0-0\n"
    assert capsys.readouterr().out.endswith(line)
