"""What became of each leaf in admission, and why not the rest: for people who look into one execution.

Nothing here decides anything: it tells afterwards what the draw (`gyre.core.admission`) did to a leaf's tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gyre.core.admission import PRIORITY, Node, Nodes, Span, path
from schemas.rewards import LeafSummary

Reason = Literal[
    "admitted", "auxiliary", "abandoned", "not delivered", "no targets", "masked", "j_max", "not drawn",
    "open", "unscored", "waiting", "surplus", "placeholder", "excluded", "held out",
]  # fmt: skip
Standing = Literal["drawn", "open", "unscored", "waiting", "surplus", "placeholder", "excluded", "held out"]
"""Of an execution: `drawn` once its trajectories are admitted, else what it waits for or why it never trains."""

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Fate:
    """One leaf after the draw."""

    leaf: str
    reason: Reason
    order: int | None = None
    """Which draw took it, from 1; None when none did."""
    candidates: int = 0
    """Tokens of its path that could become targets, before any draw."""
    masked: tuple[tuple[str, int], ...] = ()
    """(leaf drawn before, tokens of this path that its draw masked), in the order drawn; each token counted once."""
    left: int = 0
    """Candidates that no earlier draw masked: of an admitted leaf its targets."""


def fates(
    nodes: Nodes, leaves: Sequence[LeafSummary], drawn: Sequence[str], *, j_max: int, standing: Standing
) -> tuple[Fate, ...]:
    """Say of each leaf what became of it.

    Args:
        nodes: the tree.
        leaves: its classified leaves.
        drawn: admitted leaves in the order drawn; those that the tree does not have are passed over.
        j_max: most draws.
        standing: of the execution; what is not `drawn` is the reason of every candidate.
    Returns:
        One fate a leaf, in the order of `leaves`.
    Raises:
        ValueError: the tree is broken, see `gyre.core.admission.path`.
    """
    known = {leaf.leaf for leaf in leaves}
    masks = {leaf: {span.call: span.stop for span in path(nodes, leaf)} for leaf in drawn if leaf in known}
    return tuple(_fate(nodes, leaf, masks, len(drawn) >= j_max, standing) for leaf in leaves)


def words(fate: Fate, j_max: int) -> str:
    """A fate in one line."""
    through = ", ".join(f"{leaf} ({count})" for leaf, count in fate.masked)
    also = f"; {sum(count for _, count in fate.masked)} more through {through}" if through else ""
    match fate.reason:
        case "admitted":
            return f"trained on, {fate.left} targets, draw {fate.order}{also}"
        case "masked":
            return f"not trained on: masked, its {fate.candidates} tokens are trained through {through}"
        case "j_max":
            return f"not trained on: J_max = {j_max} reached, {fate.left} targets left{also}"
        case other:
            return f"not trained on: {_WHY[other]}"


_WHY: Mapping[Reason, str] = {
    "auxiliary": "auxiliary, a call beside the work",
    "abandoned": "abandoned, the client threw it away and asked again",
    "not delivered": "not delivered, no client received the answer",
    "no targets": "nothing on its path was sampled for a client",
    "not drawn": "the recorded draw left it out",
    "open": "the execution is open",
    "unscored": "no reward yet",
    "waiting": "its group is not ready yet",
    "surplus": "a surplus, its group closed with others that were scored before it (schedule.oversample)",
    "placeholder": "nothing was assessable, the reward is a placeholder",
    "excluded": "no valid reward, the execution is excluded",
    "held out": "a held-out episode, measured and never trained on",
}


def _fate(
    nodes: Nodes, leaf: LeafSummary, masks: Mapping[str, Mapping[str, int]], full: bool, standing: Standing
) -> Fate:
    if leaf.role not in PRIORITY:
        return Fate(leaf.leaf, _never(leaf, nodes[leaf.leaf]))
    if standing != "drawn":
        return Fate(leaf.leaf, standing)
    spans = path(nodes, leaf.leaf)
    order = list(masks).index(leaf.leaf) + 1 if leaf.leaf in masks else None
    earlier = dict(list(masks.items())[: None if order is None else order - 1])
    candidates = sum(span.stop - _first(nodes[span.call], span) for span in spans)
    masked = _masked(nodes, spans, earlier)
    left = candidates - sum(count for _, count in masked)
    return Fate(leaf.leaf, _reason(order, candidates, left, full), order, candidates, masked, left)


def _never(leaf: LeafSummary, node: Node) -> Reason:
    if leaf.role == "auxiliary":
        return "auxiliary"
    return "abandoned" if node.delivered else "not delivered"


def _reason(order: int | None, candidates: int, left: int, full: bool) -> Reason:
    if order is not None:
        return "admitted"
    if not candidates:
        return "no targets"
    if not left:
        return "masked"
    return "j_max" if full else "not drawn"


def _masked(
    nodes: Nodes, spans: Sequence[Span], earlier: Mapping[str, Mapping[str, int]]
) -> tuple[tuple[str, int], ...]:
    """Spans begin at a call's own first token, so that what a draw masks of a call is a beginning of it."""
    reached = {span.call: _first(nodes[span.call], span) for span in spans}
    found: list[tuple[str, int]] = []
    for leaf, stops in earlier.items():
        count = 0
        for span in spans:
            stop = min(span.stop, stops.get(span.call, 0))
            count += max(0, stop - reached[span.call])
            reached[span.call] = max(reached[span.call], stop)
        if count:
            found.append((leaf, count))
    return tuple(found)


def _first(node: Node, span: Span) -> int:
    """Where the tokens that could be targets begin in a span; its end when it has none."""
    candidate = node.delivered and node.kind != "auxiliary"
    return min(span.stop, len(node.input_ids) // _TOKEN_BYTES) if candidate else span.stop
