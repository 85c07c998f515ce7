"""gyre tree --recording: recorded traffic becomes a tree without a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.app import app

DATA = Path(__file__).parents[1] / "data" / "harness"
NESTED = DATA / "claude-code-2.1.332-subagent-nested.jsonl"


def tree(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["tree", *map(str, arguments)])


def test_json_holds_nodes_leaves_roots_links_rejected_and_abandoned() -> None:
    found = json.loads(tree("--recording", NESTED, "--json").stdout)
    assert [(leaf["id"], leaf["role"], leaf["thread"], leaf["final_main"]) for leaf in found["leaves"]] == [
        ("recording-c3", "sub-agent", "agent-001/agent-002", False),
        ("recording-c4", "sub-agent", "agent-001", False),
        ("recording-c5", "main", "main", True),
    ]
    assert [(link["call"], link["thread"], link["first"]) for link in found["links"]] == [
        ("recording-c0", "agent-001", "recording-c1"),
        ("recording-c1", "agent-001/agent-002", "recording-c2"),
    ]
    assert found["roots"] == ["recording-c0", "recording-c1"]
    assert (found["rejected"], found["abandoned"], len(found["nodes"])) == ([], [], 6)
    assert all(0 < leaf["targets"] < leaf["length"] for leaf in found["leaves"])


def test_what_was_lost_is_listed_with_its_reason() -> None:
    found = json.loads(tree("--recording", DATA / "codex-0.171.0-err529.jsonl", "--json").stdout)
    assert found["rejected"] == [{"call": "request 2", "reason": "refused, as recorded"}]
    found = json.loads(tree("--recording", DATA / "opencode-1.18.33-chat-eof-mid.jsonl", "--json").stdout)
    assert found["abandoned"] == ["recording-c2"]


def test_the_drawing_names_links_and_what_could_not_be_told(tmp_path: Path) -> None:
    newer = tmp_path / "newer.jsonl"
    newer.write_bytes(NESTED.read_bytes().replace(b"claude-cli/2.1.332", b"claude-cli/9.0.0"))
    page = tree("--recording", newer).stdout
    assert "link: recording-c1 started recording-c2 of agent-001/agent-002" in page
    assert "unknown: recording-c0, version 9.0.0: marks were read off 2.1.220, 2.1.332" in page


def test_another_adapter_reads_the_same_traffic_otherwise() -> None:
    found = json.loads(tree("--recording", NESTED, "--adapter", "mini-swe-agent", "--json").stdout)
    assert {leaf["role"] for leaf in found["leaves"]} == {"main"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--recording", "none.jsonl"), 1, "none.jsonl: cannot be read: No such file"),
        (("--recording", __file__), 1, "line 1: is not JSON"),
        (("--recording", NESTED, "--adapter", "none"), 1, "harness.adapter 'none': unknown; one of auto, reference"),
        (("--recording", NESTED, "run"), 2, "give a run and an execution, or --recording FILE"),
        (("run",), 2, "give a run and an execution, or --recording FILE"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: tuple[str | Path, ...], code: int, says: str) -> None:
    result = tree(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert says in result.stderr
