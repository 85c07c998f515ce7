"""The leaves of a tree and their roles: main > main-summary > sub-agent > sub-agent-summary (design §7, Roles).

A leaf is a node whose whole path no other node goes on from: what it sampled last stands on no other path. Where all
that went on from a node is abandoned, the node ends a path of its own: what a client received is not lost with what it
did not.
"""

from collections.abc import Sequence

from gyre.core.tree import Node, Tree, context_ids, path_ids, sampled
from schemas.rewards import LeafSummary, Role

MAIN = "main"
"""Thread of an execution's main conversation; every other thread is a sub-agent's."""

_ROLES: dict[tuple[bool, bool], Role] = {
    (True, False): "main",
    (True, True): "main-summary",
    (False, False): "sub-agent",
    (False, True): "sub-agent-summary",
}


def leaves(tree: Tree) -> tuple[str, ...]:
    """Calls that end a path, by index."""
    return _ends(tree, set())


def summaries(tree: Tree) -> tuple[LeafSummary, ...]:
    """What `TreeBuilt` says of each leaf, by index; the last main leaf is `final_main`."""
    roles: dict[str, Role] = {}
    abandoned: set[str] = set()
    while found := [call for call in _ends(tree, abandoned) if call not in roles]:
        resampled = _resampled(tree, found)
        roles |= {call: _role(tree.nodes[call], call in resampled) for call in found}
        abandoned |= {call for call in found if roles[call] == "abandoned"}
    ends = sorted(roles, key=lambda call: (tree.nodes[call].index, call))
    final = next((call for call in reversed(ends) if roles[call] == "main"), None)
    return tuple(
        LeafSummary(
            leaf=call,
            role=roles[call],
            tokens=tree.nodes[call].length,
            targets=sampled(tree, call).count(1),
            final_main=call == final,
        )
        for call in ends
    )


def _ends(tree: Tree, without: set[str]) -> tuple[str, ...]:
    """Calls that end a path of the tree without some calls, by index."""
    nodes = [node for node in tree.nodes.values() if node.call not in without]
    whole = {_stem(tree, node, without) for node in nodes}
    ends = [node for node in nodes if (node.call, node.length) not in whole]
    return tuple(node.call for node in sorted(ends, key=lambda node: (node.index, node.call)))


def _stem(tree: Tree, node: Node, without: set[str]) -> tuple[str | None, int]:
    """The call that a node goes on from and how much of its path, looking through calls that are left out."""
    parent, tokens = node.parent, node.prefix_tokens
    while parent is not None and parent in without:
        left = tree.nodes[parent]
        parent, tokens = left.parent, min(tokens, left.prefix_tokens)
    return parent, tokens


def _role(node: Node, resampled: bool) -> Role:
    if not node.delivered or resampled:
        return "abandoned"
    if node.kind == "auxiliary":
        return "auxiliary"
    return _ROLES[node.thread == MAIN, node.kind == "compaction"]


def _resampled(tree: Tree, ends: Sequence[str]) -> set[str]:
    """Leaves cut by length or empty whose very context was asked again later: the client threw them away.

    A complete answer to a context that is asked again is none: two sub-agents may be given the same prompt.
    """
    poor = [call for call in ends if tree.nodes[call].finish != "stop" or len(tree.nodes[call].output_ids) <= 4]  # noqa: PLR2004 (bytes of the stop token alone)
    found: set[str] = set()
    for call in poor:
        node, context = tree.nodes[call], context_ids(tree, call)
        later = (other for other in tree.nodes.values() if other.index > node.index and other.context == node.context)
        if any(path_ids(tree, other.call, node.context) == context for other in later):
            found.add(call)
    return found
