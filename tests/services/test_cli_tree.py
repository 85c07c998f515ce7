"""gyre tree and the states of gyre replay, from an archive, and from the run that it is imported as."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gyre.core import tree as trees
from schemas.rewards import AssessmentRecorded, Provenance
from services.source import Source
from services.states import state_at
from services.views.tree_drawing import draw
from services.views.tree_view import assessment_of, tree_of
from tests.services.conftest import Gyre, refusal
from tests.services.small_run import ADMITTED, DRAWN, NEXT, RECORDS, ROOT, TARGETS, TREE, length


def drawing(found: dict[str, Any], *, full: bool = False) -> list[str]:
    page = io.StringIO()
    draw(found, Console(file=page, width=60), full=full)
    return page.getvalue().splitlines()


async def test_a_tree_is_what_its_records_say_in_words(source: Source) -> None:
    found = await tree_of(source, "x0-0")
    assert found["digest"] == trees.digest(TREE)
    assert found["as_recorded"] is True
    assert [(node["call"], node["parent"], node["output"]) for node in found["nodes"][:3]] == [
        ("x0-0-c0", None, "I will write it."),
        ("x0-0-c1", "x0-0-c0", "[done]"),
        ("x0-0-c2", "x0-0-c0", "I did it again."),
    ]
    assert found["roots"] == ["x0-0-c0", "x0-0-c3", "x0-0-c5"]
    assert found["abandoned"] == ["x0-0-c6", "x0-0-c8"]
    assert found["reward"] == 0.25
    assert found["training"] == {"step": 1, "ratio": 1.25, "mask": 0}
    json.dumps(found)


async def test_a_leaf_has_its_role_its_thread_and_what_became_of_it(source: Source) -> None:
    leaves = {leaf["id"]: leaf for leaf in (await tree_of(source, "x0-0"))["leaves"]}
    assert {(call, leaf["role"]) for call, leaf in leaves.items()} == {
        ("x0-0-c2", "main"),
        ("x0-0-c3", "sub-agent"),
        ("x0-0-c4", "main-summary"),
        ("x0-0-c5", "auxiliary"),
        ("x0-0-c6", "abandoned"),
        ("x0-0-c7", "main"),
        ("x0-0-c8", "abandoned"),
    }
    assert [call for call, leaf in leaves.items() if leaf["final_main"]] == ["x0-0-c7"]
    assert leaves["x0-0-c3"]["thread"] == "sub-agent"
    reasons = {call: leaf["reason"] for call, leaf in leaves.items()}
    assert reasons == {
        "x0-0-c2": "admitted",
        "x0-0-c3": "j_max",
        "x0-0-c4": "j_max",
        "x0-0-c5": "auxiliary",
        "x0-0-c6": "abandoned",
        "x0-0-c7": "admitted",
        "x0-0-c8": "not delivered",
    }
    shared = leaves["x0-0-c4"]
    assert shared["masked"] == {"x0-0-c7": length(NEXT) - len(NEXT.input_ids) // 4 - len(ROOT.input_ids) // 4}
    assert "J_max = 2 reached" in shared["why"]


async def test_a_sub_agent_is_linked_to_the_call_that_started_it(source: Source) -> None:
    found = await tree_of(source, "x0-0")
    link = {"call": "x0-0-c1", "tool_call_id": "call_1", "thread": "sub-agent", "first": "x0-0-c3"}
    assert found["links"] == [link]
    assert "link: x0-0-c1 started x0-0-c3 of sub-agent" in drawing(found)


async def test_what_moves_no_weight_says_why(source: Source) -> None:
    leaves = (await tree_of(source, "x0-0"))["leaves"]
    admitted = [leaf["why"] for leaf in leaves if leaf["admitted"]]
    assert admitted
    assert all("moves no weight: ratio 1.2500 beyond its bound in step 1" in why for why in admitted)


async def test_a_record_that_fits_nowhere_and_a_request_that_was_refused_are_rejected_with_a_reason(
    source: Source,
) -> None:
    assert (await tree_of(source, "x0-0"))["rejected"] == [
        {"call": "x0-0-c9", "reason": "parent x0-0-c99 is no node of the tree"},
        {"call": "x0-0-rab", "reason": "messages: no image can be shown"},
    ]


@pytest.mark.parametrize(
    ("execution", "standing"), [("x0-1", "excluded"), ("x0-2", "open"), ("x1-2", "surplus"), ("e0-0", "held out")]
)
async def test_an_execution_that_nothing_is_drawn_from_says_what_stands_in_the_way(
    source: Source, execution: str, standing: str
) -> None:
    found = await tree_of(source, execution)
    assert found["standing"] == standing
    assert [leaf["reason"] for leaf in found["leaves"]] == [standing]


async def test_a_drawing_has_a_line_for_each_chain_and_never_a_control_character(source: Source) -> None:
    lines = drawing(await tree_of(source, "x0-0"))
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "I was\\x1b[31m cut." in text
    assert "I will write it." not in text, "of a chain only the last text is drawn"
    assert f"{len(DRAWN)} of 7 leaves admitted (J_max 2), {TARGETS} targets, advantage +1.500" in text
    assert sum("trained on, " in line for line in lines) == len(DRAWN)
    assert "rejected: x0-0-c9, parent x0-0-c99 is no node of the tree" in text
    assert any(line.startswith("├─● x0-0-c2") and "forks inside x0-0-c0, fell back: it trims" in line for line in lines)


async def test_a_drawing_says_who_judged_where_the_log_does(source: Source) -> None:
    found = await tree_of(source, "x0-0")
    assert found["assessments"] == []
    said = AssessmentRecorded(
        assessment="x0-0-a1", execution="x0-0", designated=True, attempt=1, state=None, branch=None, score=None,
        valid=False, seconds=1, detail="its tests crash",
    )  # fmt: skip
    tests = Provenance(evaluator="tests", digest="5c" * 32, sandbox="docker", image="an-image")
    judge = Provenance(evaluator="judge", digest="9f" * 32, model="wise", url="http://h/v1", sandbox="process")
    beside = {"designated": False, "assessment": "x0-0-judge", "score": 0.5, "valid": True}
    each = (
        said,
        said.model_copy(update={"provenance": tests}),
        said.model_copy(update={"provenance": judge, **beside}),
    )
    found["assessments"] = [assessment_of(event) for event in each]
    assert [line for line in drawing(found) if line.startswith("assessment")] == [
        "assessment x0-0-a1: no score by tests, run in docker in an-image, rules 5c5c5c5c5c5c",
        "assessment x0-0-judge: 0.500 by wise at http://h/v1, run in process, rules 9f9f9f9f9f9f, beside the reward",
    ]


async def test_a_full_drawing_has_a_line_for_each_call(source: Source) -> None:
    lines = drawing(await tree_of(source, "x0-0"), full=True)
    for record in RECORDS[:-1]:
        assert sum(f"● {record.call} " in line for line in lines) == 1
    assert any("was\\x1b[31m cut." in line for line in lines)
    assert any("[done]" in line for line in lines)


def test_a_long_execution_is_drawn_in_as_many_lines_as_it_has_forks() -> None:
    """600 calls; every tenth is asked again, and both stand."""

    def node(number: int, parent: int | None, prefix: int) -> dict[str, Any]:
        return {
            "call": f"c{number}",
            "index": number,
            "parent": None if parent is None else f"c{parent}",
            "kind": "turn",
            "thread": "main",
            "prefix_tokens": prefix,
            "input_tokens": 1,
            "output_tokens": 1,
            "finish": "stop",
            "delivered": True,
            "output": "so",
            "fallback": "",
        }

    nodes = [node(number, number - 1 if number else None, 2 * number) for number in range(600)]
    nodes += [node(600 + number, 10 * number, 20 * number + 2) for number in range(1, 60)]
    found = {"execution": "x", "nodes": nodes, "roots": ["c0"], "leaves": [], "links": [], "rejected": []}
    lines = drawing(found)
    assert len(lines) < 2 * 60 + 5
    assert max(len(line) - len(line.lstrip("│├└─ ")) for line in lines) <= 6
    assert len(drawing(found, full=True)) == len(nodes) + 1


def test_many_calls_beside_the_work_are_one_line() -> None:
    title = {
        "kind": "auxiliary", "thread": "main", "parent": None, "prefix_tokens": 0, "input_tokens": 1,
        "output_tokens": 2, "finish": "stop", "delivered": True, "output": "so", "fallback": "",
    }  # fmt: skip
    nodes = [{**title, "call": f"c{number}", "index": number} for number in range(5)]
    found = {"execution": "x", "nodes": nodes, "roots": ["c0"], "leaves": [], "links": [], "rejected": []}
    assert "5 auxiliary calls  c0 .. c4, 10 sampled" in drawing(found)[1]
    assert len(drawing(found, full=True)) == 6


@pytest.mark.parametrize("execution", ["x9-9", "x.*", ""])
def test_an_execution_that_never_was_is_one_line_with_one_that_was(gyre: Gyre, small_run: Path, execution: str) -> None:
    line = refusal(gyre("tree", small_run, execution))
    assert f"execution {execution}" in line
    if execution == "x9-9":
        assert line.endswith("the newest with a call is e0-0")


async def test_trees_can_be_looked_at_as_of_a_sequence(source: Source) -> None:
    found = await state_at(source, "trees", None)
    assert found["x0-0"]["digest"] == trees.digest(TREE)
    assert await state_at(source, "trees", 1) == {}


async def test_batch_and_cells_are_parts_of_what_deciders_know(source: Source) -> None:
    assert await state_at(source, "batch", None) == await state_at(source, "packer", None)
    assert await state_at(source, "cells", None) == (await state_at(source, "scheduler", None))["cells"]


def test_an_archive_is_read_as_it_is_and_all_is_the_same_once_imported(
    gyre: Gyre, small_run: Path, tmp_path: Path
) -> None:
    def say(*arguments: str) -> Any:
        result = gyre(*arguments)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    looks = (("tree", "x0-0"), ("samples", "x0-0"), ("call", "x0-0-c1"))
    before = [say(command, str(small_run), about, "--json") for command, about in looks]
    assert before[0]["admitted"]["group"] == ADMITTED.group
    assert not (tmp_path / "runs").exists()
    assert gyre("log", "import", small_run).exit_code == 0
    assert [say(command, "r", about, "--json") for command, about in looks] == before
    for state in ("progress", "trees", "batch", "cells"):
        assert say("replay", "r", "--state", state) == say("replay", str(small_run), "--state", state)
    assert "exists already" in refusal(gyre("log", "import", small_run))
