"""Recorded sessions of real clients give the trees that were written down by hand (tests/data/harness)."""

import re
import tomllib
from pathlib import Path
from typing import Any

import orjson
import pytest

from gyre.core import tree as trees
from gyre.core.admission import path
from gyre.core.leaves import summaries
from gyre.models.load import NANO
from gyre.proxy.adapters.registry import ADAPTERS, find_adapter
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.links import links
from gyre.proxy.playback import Played, play
from gyre.proxy.recording import read
from gyre.proxy.template import Template

DATA = Path(__file__).parents[2] / "data" / "harness"
EXPECTED: dict[str, Any] = tomllib.loads((DATA / "expected.toml").read_text())
TEMPLATE = Template(ChatModel.load(NANO))
CLIENTS = {name: name for name in ADAPTERS} | {"openhands-sdk": "openhands"}
ANONYMOUS = re.compile(r"sub-agent-[0-9a-f]{8}")


def played(name: str, adapter: str = "auto") -> Played:
    with (DATA / f"{name}.jsonl").open("rb") as lines:
        return play(read(lines), TEMPLATE, find_adapter(adapter))


def client(name: str) -> str:
    return CLIENTS[re.split(r"-\d", name)[0]]


def requests_on(found: Played, leaf: str) -> str:
    """The requests whose answers lie on a path, as `expected.toml` words them."""
    whole = [span.call for span in path(found.tree.nodes, leaf) if span.stop == own(found.tree.nodes[span.call])]
    return " ".join(str(found.requests[call][0]) for call in whole)


def own(node: trees.Node) -> int:
    return (len(node.input_ids) + len(node.output_ids)) // 4


def worded(found: Played) -> dict[str, list[Any]]:
    """What was found, as `expected.toml` says it."""
    nodes = found.tree.nodes
    number = {call: numbers[0] for call, numbers in found.requests.items()}
    ids = {call: [each["id"] for each in reply_calls(found, call)] for call in nodes}
    return {
        "roots": [number[call] for call, node in nodes.items() if node.parent is None],
        "leaves": [
            f"{leaf.role} {ANONYMOUS.sub('sub-agent-*', nodes[leaf.leaf].thread)}: {requests_on(found, leaf.leaf)}"
            for leaf in summaries(found.tree)
        ],
        "links": [
            f"{number[link.call]}, {ids[link.call].index(link.tool_call_id)} -> "
            f"{ANONYMOUS.sub('sub-agent-*', link.thread)}, {number[link.first]}"
            for link in links(found.records)
        ],
        "rejected": [int(request.removeprefix("request ")) for request, _ in found.rejected],
        "joined": [late for numbers in found.requests.values() for late in numbers[1:]],
    }


def reply_calls(found: Played, call: str) -> list[Any]:
    record = next(each for each in found.records if each.call == call)
    calls: list[Any] = orjson.loads(record.reply)[0].get("tool_calls", [])
    return calls


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recording_gives_the_tree_that_was_written_down(name: str) -> None:
    assert worded(played(name)) == {"links": [], "rejected": [], "joined": []} | EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_auto_reads_a_client_as_its_own_adapter_does_and_knows_its_version(name: str) -> None:
    found = played(name)
    assert played(name, client(name)) == found
    assert found.unknown == ()


@pytest.mark.parametrize("name", EXPECTED)
def test_only_the_last_main_leaf_is_the_final_one_and_records_alone_rebuild_the_tree(name: str) -> None:
    found = played(name)
    ends = summaries(found.tree)
    last = [leaf.leaf for leaf in ends if leaf.role == "main"][-1]
    assert [leaf.leaf for leaf in ends if leaf.final_main] == [last]
    assert trees.fold(found.tree.execution, found.records) == found.tree


def test_each_recording_has_its_expected_tree() -> None:
    assert {file.stem for file in DATA.glob("*.jsonl")} == set(EXPECTED)
