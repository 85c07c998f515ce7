"""gyre call: one request record, how it was matched, and what it went through."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.source import Source
from services.views.call_drawing import draw
from services.views.call_view import call_of
from tests.services.conftest import Gyre, refusal
from tests.services.small_run import AGAIN, DONE, FORK, NEXT, ROOT, WORDS, length


def drawing(found: dict[str, Any], *, full: bool = False) -> str:
    page = io.StringIO()
    draw(found, Console(file=page, width=60), full=full)
    return page.getvalue()


async def test_a_call_has_its_exact_input_with_the_cut_between_what_was_there_and_what_is_new(source: Source) -> None:
    found = await call_of(source, NEXT.call)
    assert (found["prefix_text"], found["input_text"], found["output_text"]) == (
        "Write the word.I will write it.",
        " Go on.",
        "[done]",
    )
    assert found["cut"] == f"behind the answer of {ROOT.call}"
    assert found["children"] == ["x0-0-c4", "x0-0-c6", "x0-0-c7"]
    assert found["record"]["prefix_tokens"] == length(ROOT)
    text = drawing(found)
    assert text.index("I will write it.\n") < text.index("──── cut: ") < text.index("\n Go on.\n")


async def test_a_call_names_the_messages_that_were_matched_and_those_that_are_new(source: Source) -> None:
    found = await call_of(source, AGAIN.call)
    assert [(each["call"], each["answer"], each["content"]) for each in found["matched"]] == [
        (ROOT.call, False, "Write the word."),
        (ROOT.call, True, "I will write it."),
        (NEXT.call, False, " Go on."),
        (NEXT.call, True, "[done]"),
    ]
    assert [each["content"] for each in found["new"]] == [" More."]
    assert found["leaf"] == "main"
    assert '[done] agent({"prompt": "Help me."})  (answer of x0-0-c1)' in drawing(found)


async def test_a_fork_says_where_inside_its_parent_it_begins(source: Source) -> None:
    found = await call_of(source, FORK.call)
    assert found["cut"] == f"behind the input of {ROOT.call}, before its answer"
    assert len(found["matched"]) == 1
    assert "fallback    it trims" in drawing(found)
    assert (await call_of(source, ROOT.call))["cut"] == "a root: nothing was matched"


async def test_what_a_call_went_through_is_told_and_not_what_others_did(source: Source) -> None:
    events = (await call_of(source, NEXT.call))["events"]
    assert [each["type"] for each in events] == ["ModelCallRetried", "RouteMoved", "KvHandoffCompleted"]
    assert (await call_of(source, AGAIN.call))["events"] == []
    assert "KvHandoffCompleted  from_cell 0, to_cell 1, tokens 9" in drawing(await call_of(source, NEXT.call))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        ("x0-0-c10", "RequestCancelled", "client gone"),
        ("x0-0-rab", "HistoryRejected", "messages: no image can be shown"),
    ],
)
async def test_a_call_that_was_never_answered_is_told_by_its_events(
    source: Source, call: str, kind: str, words: str
) -> None:
    found = await call_of(source, call)
    assert found["record"] is None
    assert [each["type"] for each in found["events"]] == [kind]
    assert words in drawing(found)


async def test_a_record_that_fits_nowhere_says_why(source: Source) -> None:
    found = await call_of(source, "x0-0-c9")
    assert found["node"] is False
    assert "rejected    parent x0-0-c99 is no node of the tree" in drawing(found)
    assert found["output_text"] == "Nowhere."


async def test_a_drawing_has_no_control_character_and_all_that_the_record_holds(source: Source) -> None:
    text = drawing(await call_of(source, AGAIN.call))
    assert "\x1b" not in text
    assert "I was\\x1b[31m cut." in text
    count = len(WORDS.encode("I was\x1b[31m cut."))
    assert f"versions    v0 x {count // 2}, v1 x {count - count // 2}" in text
    assert "finish stop, delivered" in text
    assert "queue 0.000 s, engine 0.000 s, total 0.000 s; 0 tokens were cached" in text


async def test_a_field_that_a_later_version_adds_to_records_is_shown(source: Source) -> None:
    found = await call_of(source, AGAIN.call)
    found["record"]["novelty"] = "seen"
    assert "novelty     seen" in drawing(found)


async def test_a_long_history_shows_its_ends_unless_all_is_asked_for(source: Source) -> None:
    found = await call_of(source, AGAIN.call)
    found["matched"] *= 100
    found["prefix_text"] *= 100
    assert "... 394 more (--full shows them)" in drawing(found)
    assert len(drawing(found).splitlines()) < 40
    assert len(drawing(found, full=True).splitlines()) > 400


def test_a_call_is_one_json_object_wherever_it_is_kept(gyre: Gyre, small_run: Path) -> None:
    result = gyre("call", small_run, NEXT.call, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["record"]["cells"] == [0, 1]
    assert found["reply"] == [DONE]


@pytest.mark.parametrize("call", ["x0-0-c77", "x9-9-c0", "nothing", "", "x.*"])
def test_a_call_that_never_was_is_one_line_with_what_to_try(gyre: Gyre, small_run: Path, call: str) -> None:
    line = refusal(gyre("call", small_run, call))
    assert line == f"call {call}: run r has none; `gyre tree r EXECUTION --full` lists calls"
