"""A tree in the words of `expected.toml`, which was written by hand."""

import re
from collections.abc import Sequence
from typing import Any

from gyre.core import tree as trees
from gyre.core.admission import path
from gyre.core.leaves import MAIN, summaries
from gyre.proxy.links import links
from schemas.calls import ModelCallRecorded


def worded(execution: str, records: Sequence[ModelCallRecorded]) -> dict[str, Any]:
    """Roots: their count. Leaves: role, thread and the whole answers on the path. Links: thread -> thread."""
    tree = trees.fold(execution, records)
    ends = summaries(tree)
    nodes = tree.nodes
    final = [_leaf(tree, end.leaf, end.role) for end in ends if end.final_main]
    return {
        "roots": sum(node.parent is None for node in nodes.values()),
        "leaves": sorted(_leaf(tree, end.leaf, end.role) for end in ends),
        "final": final[0] if final else "",
        "links": sorted(
            f"{_thread(tree.nodes[link.call].thread)} -> {_thread(link.thread)}" for link in links(records)
        ),
    }


def foreign(execution: str, records: Sequence[ModelCallRecorded], received: set[bytes]) -> list[str]:
    """Calls whose recorded context is not what the policy was sent, token by token."""
    tree = trees.fold(execution, records)
    strange = [call for call in tree.nodes if bytes(trees.context_ids(tree, call)) not in received]
    return [f"recorded contexts that the policy never saw: {', '.join(strange)}"] if strange else []


def _leaf(tree: trees.Tree, leaf: str, role: str) -> str:
    spans = path(tree.nodes, leaf)
    whole = [span for span in spans if span.stop == _own(tree.nodes[span.call])]
    return f"{role} {_thread(tree.nodes[leaf].thread)}: {len(whole)}"


def _own(node: trees.Node) -> int:
    return (len(node.input_ids) + len(node.output_ids)) // 4


def _thread(name: str) -> str:
    """Ids are the client's own, and new each time."""
    return "/".join("main" if part == MAIN else re.sub(r".+", "*", part) for part in name.split("/"))
