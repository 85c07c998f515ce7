"""The leaves of a tree and their roles: main > main-summary > sub-agent > sub-agent-summary (design §7, Roles).

A leaf is a node whose whole path no other node goes on from: what it sampled last stands on no other path. Where all
that went on from a node is abandoned or stands beside the work (auxiliary), the node ends a path of its own: what a
client received is not lost with what it did not, nor an answer with the title that it was given.
"""

from collections.abc import Collection, Sequence

from gyre.core.tree import Node, Tree, context_ids, sampled
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
    beside = {call for call, node in tree.nodes.items() if node.kind == "auxiliary"}
    while found := [call for call in _either(tree, abandoned, beside) if call not in roles]:
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


def _either(tree: Tree, abandoned: set[str], beside: set[str]) -> tuple[str, ...]:
    """Calls that end a path, with the calls that stand beside the work or without them."""
    ends = _ends(tree, abandoned)
    return tuple(dict.fromkeys((*ends, *_ends(tree, abandoned | beside)))) if beside else ends


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
    """Leaves cut by length or empty to whose very context their thread has a better answer: the client threw them away.

    Better is one that is whole or was gone on from, else the longest; which one came first is not looked at, so that
    calls which ran side by side may have come in any order. A complete answer to a context that is asked again is not
    thrown away: two sub-agents may be given the same prompt.
    """
    poor = [call for call in ends if _poor(tree.nodes[call])]
    ended = set(leaves(tree)) if poor else set()
    found: set[str] = set()
    for call in poor:
        node, context = tree.nodes[call], context_ids(tree, call)
        others = (
            other
            for other in tree.nodes.values()
            if other.delivered and (other.thread, other.context) == (node.thread, node.context)
        )
        if any(
            _worth(other, ended) > _worth(node, ended) and context_ids(tree, other.call) == context for other in others
        ):
            found.add(call)
    return found


def _poor(node: Node) -> bool:
    """Whether an answer is cut or holds nothing but a stop token."""
    return node.finish != "stop" or len(node.output_ids) <= 4  # noqa: PLR2004 (bytes of a token)


def _worth(node: Node, ended: Collection[str]) -> tuple[bool, int, bytes, bytes, int]:
    """Of answers to one context: the one that is worth most was kept. Only equal ones are told apart by their index."""
    whole = not _poor(node) or node.call not in ended
    return whole, len(node.output_ids), node.output_ids, node.logprobs, node.index
