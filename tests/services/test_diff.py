"""`gyre diff A B`: two runs of one configuration, and two moments of one run."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gyre.core.difference import Row, Solved
from services.diff import difference_of, side_of
from services.views.diff_drawing import draw
from tests.services.conftest import Gyre, refusal
from tests.services.recorded import AGAIN, SMALL


def compared(gyre: Gyre, one: object, other: object) -> dict[str, Any]:
    result = gyre("diff", one, other, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_two_runs_of_one_configuration_part_where_timing_decided(gyre: Gyre) -> None:
    found = compared(gyre, SMALL, AGAIN)
    assert (found["alike"], found["same_run"]) == (True, False)
    assert [row["what"] for row in found["settings"]] == ["run.name"]
    assert found["first_fact"] is None
    first = {each["of"].partition(" ")[0]: each for each in found["first_decisions"]}
    assert set(first) == {"admission", "scheduler"}
    assert first["admission"]["here_says"] == "GroupReady group g4"
    assert first["admission"]["there_says"] == "GroupReady group g3"
    steps = found["steps"]
    assert [each["step"] for each in steps] == [1, 2, 3, 4]
    assert all(each["here"]["reward"] == each["there"]["reward"] for each in steps)
    assert found["tasks"][0]["here"]["mean"] == found["tasks"][0]["there"]["mean"]


def test_a_moment_that_is_left_empty_is_refused(gyre: Gyre) -> None:
    assert refusal(gyre("diff", f"{SMALL}@", SMALL)).startswith(f"{SMALL}@: no moment follows the @; give a sequence")


def test_a_run_is_equal_to_itself(gyre: Gyre) -> None:
    found = compared(gyre, SMALL, SMALL)
    assert (found["same_run"], found["settings"], found["said"]) == (True, [], [])
    assert all(row["here"] == row["there"] for row in found["counters"] + found["endings"])


def test_two_moments_of_a_run_say_what_came_between(gyre: Gyre) -> None:
    found = compared(gyre, f"{SMALL}@step:1", f"{SMALL}@step:3")
    assert found["same_run"]
    said = {row["what"]: (row["here"], row["there"]) for row in found["said"]}
    assert said["OptimizerStepped"] == (1, 3)
    assert said["BurstEnded"] == (0, 1)
    assert [(each["here"] is None, each["there"] is None) for each in found["steps"]] == [
        (False, False),
        (True, False),
        (True, False),
    ]


def test_runs_that_were_started_otherwise_have_no_first_difference(gyre: Gyre, told: Path) -> None:
    found = compared(gyre, SMALL, told)
    assert (found["alike"], found["first_fact"], found["first_decisions"]) == (False, None, [])
    assert {row["what"] for row in found["settings"]} >= {"tasks", "weights"}


def test_people_see_tables_and_where_the_logs_part(gyre: Gyre, told: Path) -> None:
    text = gyre("diff", SMALL, AGAIN).stdout
    for words in ("A  ", "counters", "steps", "how executions ended", "every fact that one log tells"):
        assert words in text
    assert "first decision that differs: admission decision" in text
    assert "said in between" in gyre("diff", f"{SMALL}@step:1", SMALL).stdout
    assert "they were started differently" in gyre("diff", SMALL, told).stdout


async def test_what_a_log_says_is_no_markup_in_a_table(tmp_path: Path) -> None:
    found = await difference_of(str(SMALL), str(SMALL), tmp_path)
    rows = (Row("t.py::t[case]", "died in [/x]", "\x1b[2J"), Row("[bold]", 1, 2))
    drawn = StringIO()
    console = Console(width=200, file=drawn)
    draw(replace(found, settings=rows, tasks=(Row("a[b]\x1b", None, Solved(1, 1.0)),)), console)
    text = drawn.getvalue()
    assert all(words in text for words in ("t.py::t[case]", "died in [/x]", "\\x1b[2J", "[bold]", "a[b]\\x1b"))
    assert "\x1b[2J" not in text


async def test_a_name_may_hold_an_at(tmp_path: Path) -> None:
    odd = tmp_path / "a@b.jsonl.zst"
    odd.write_bytes(SMALL.read_bytes())
    whole, part = await side_of(str(odd), tmp_path), await side_of(f"{odd}@step:1", tmp_path)
    assert (whole.account.sequence, part.account.sequence) == (780, 435)


@pytest.mark.parametrize("name", ["nobody", "nobody@step:1"])
def test_a_side_that_is_not_there_is_one_line(gyre: Gyre, name: str) -> None:
    assert "nobody" in refusal(gyre("diff", SMALL, name))


def test_a_moment_that_is_not_there_is_one_line(gyre: Gyre) -> None:
    assert "step:1 to step:4" in refusal(gyre("diff", f"{SMALL}@step:7", SMALL))
