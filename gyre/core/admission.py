"""The seeded draw of training trajectories from an execution's tree (design §7, Admission).

A token is named by (call, offset in the call's own input and output), because a call may fork inside its parent's
path: two leaves share exactly the tokens they name alike. Paths are kept as spans of such tokens, so that a draw
costs with the number of calls on a path and not with its tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Protocol

from schemas.base import Float32s, Int32s, floats, pack_floats
from schemas.refs import BlobRef
from schemas.rewards import LeafSummary, Role
from schemas.training import ExpertSpan, Trajectory

PRIORITY: tuple[Role, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary")
"""Highest first. Auxiliary and abandoned leaves are in no class: they are never candidates."""

_SEED_BITS = 53
_TOKEN_BYTES = 4


class Node(Protocol):
    """One request record, as admission needs it; `schemas.calls.ModelCallRecorded` is one."""

    @property
    def parent(self) -> str | None:
        """The call whose path this one extends."""

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the parent's path that this call's context begins with."""

    @property
    def input_ids(self) -> Int32s:
        """(I,) new context tokens."""

    @property
    def output_ids(self) -> Int32s:
        """(O,) what the policy sampled."""

    @property
    def logprobs(self) -> Float32s:
        """(O,) behaviour log-probabilities, nats."""

    @property
    def kind(self) -> str:
        """An `auxiliary` call's output is never a candidate."""

    @property
    def delivered(self) -> bool:
        """Whether a client received the whole answer."""

    @property
    def experts(self) -> BlobRef | None:
        """(I + O, ...) the experts at the position before each own token, if the engine told."""


Nodes = Mapping[str, Node]
Masks = dict[str, bytearray]
"""A byte for each of a call's own tokens: 1 while it may still become a target."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) of a call's own input followed by its output."""

    call: str
    start: int
    stop: int


def seed_of(seed: int, name: str) -> int:
    """Derive the seed of one execution or group from the run's; 53 bits, so that every JSON reader keeps it."""
    return _hash(f"{seed}/{name}") >> (256 - _SEED_BITS)


def path(nodes: Nodes, leaf: str) -> tuple[Span, ...]:
    """Spans of the root-to-leaf path, root first; together they are the leaf's exact context and output.

    Raises:
        ValueError: a call is unknown, or takes more of its parent's path than there is (names the call).
    """
    spans: list[Span] = []
    call: str | None = leaf
    keep = _length(nodes, leaf)
    while call is not None and keep > 0:
        prefix = _prefix(nodes, call)
        if keep > prefix:
            spans.append(Span(call, 0, keep - prefix))
        keep = min(keep, prefix)
        call = nodes[call].parent
    return tuple(reversed(spans))


def draw(nodes: Nodes, leaves: Sequence[LeafSummary], *, j_max: int, seed: int) -> tuple[Trajectory, ...]:
    """Draw at most `j_max` trajectories with disjoint targets.

    Repeat: take the highest-priority class that still has a leaf with unmasked targets; draw one leaf in it with
    probability proportional to its unmasked count; its targets are the tokens unmasked now; mask its whole path.
    The draw is the SHA-256 of ``seed/number of the draw`` modulo the class's count: the same in every version. The
    leaves of a class stand in the order of a digest of their content, so that calls which ran side by side may have
    come in any order.

    Args:
        nodes: the tree.
        leaves: its classified leaves; their order settles only which of two equal paths comes first.
        j_max: at least 1.
        seed: of this execution, see `seed_of`.
    Returns:
        J <= j_max trajectories, in the order drawn; none when no leaf has a target.
    Raises:
        ValueError: the tree is broken, see `path`, or an output has not one log-probability a token.
    """
    candidates = [leaf for leaf in leaves if leaf.role in PRIORITY]
    paths = {leaf.leaf: path(nodes, leaf.leaf) for leaf in candidates}
    masks = {span.call: _provenance(nodes, span.call) for spans in paths.values() for span in spans}
    candidates.sort(key=lambda leaf: _content(nodes, paths[leaf.leaf], masks))
    drawn: list[Trajectory] = []
    while len(drawn) < j_max:
        counts = {leaf.leaf: _count(masks, paths[leaf.leaf]) for leaf in candidates}
        best = _highest([leaf for leaf in candidates if counts[leaf.leaf]])
        if not best:
            break
        chosen = best[_place([counts[leaf.leaf] for leaf in best], seed, len(drawn))]
        drawn.append(_trajectory(nodes, chosen, paths[chosen.leaf], masks))
        _mask(masks, paths[chosen.leaf])
    return tuple(drawn)


def _content(nodes: Nodes, spans: Iterable[Span], masks: Masks) -> bytes:
    """Digest of what a path holds: ids, candidates, log-probabilities. How calls are named or cut does not show."""
    ids, candidates, logprobs = sha256(), sha256(), sha256()
    for span in spans:
        node = nodes[span.call]
        ids.update(_ids(node, span))
        candidates.update(masks[span.call][span.start : span.stop])
        own = bytes(len(node.input_ids)) + node.logprobs
        logprobs.update(own[span.start * _TOKEN_BYTES : span.stop * _TOKEN_BYTES])
    return ids.digest() + candidates.digest() + logprobs.digest()


def _highest(leaves: Sequence[LeafSummary]) -> list[LeafSummary]:
    rank = min((PRIORITY.index(leaf.role) for leaf in leaves), default=0)
    return [leaf for leaf in leaves if leaf.role == PRIORITY[rank]]


def _place(counts: Sequence[int], seed: int, number: int) -> int:
    """The place drawn with probability counts[place] / sum(counts)."""
    ticket = _hash(f"{seed}/{number}") % sum(counts)
    return next(place for place, reached in enumerate(accumulate(counts)) if reached > ticket)


def _provenance(nodes: Nodes, call: str) -> bytearray:
    """What the policy sampled and a client received, in a call that is not auxiliary."""
    node = nodes[call]
    outputs = len(node.output_ids) // _TOKEN_BYTES
    if len(node.logprobs) != len(node.output_ids):
        found = f"{len(node.logprobs) // _TOKEN_BYTES} logprobs for {outputs} output tokens"
        raise ValueError(f"call {call}: {found}: a record holds one a token")
    candidate = node.delivered and node.kind != "auxiliary"
    return bytearray(len(node.input_ids) // _TOKEN_BYTES) + bytes([candidate]) * outputs


def _count(masks: Masks, spans: Iterable[Span]) -> int:
    return sum(masks[span.call].count(1, span.start, span.stop) for span in spans)


def _mask(masks: Masks, spans: Iterable[Span]) -> None:
    for span in spans:
        masks[span.call][span.start : span.stop] = bytes(span.stop - span.start)


def _trajectory(nodes: Nodes, leaf: LeafSummary, spans: Sequence[Span], masks: Masks) -> Trajectory:
    target = b"".join(masks[span.call][span.start : span.stop] for span in spans)
    return Trajectory(
        leaf=leaf.leaf,
        role=leaf.role,
        ids=b"".join(_ids(nodes[span.call], span) for span in spans),
        target=target,
        logprobs=b"".join(_logprobs(nodes[span.call], span, masks[span.call]) for span in spans),
        targets=target.count(1),
        experts=_experts(nodes, spans),
    )


def _experts(nodes: Nodes, spans: Sequence[Span]) -> tuple[ExpertSpan, ...]:
    bodies = [nodes[span.call].experts for span in spans]
    if not any(bodies):
        return ()
    return tuple(
        ExpertSpan(tokens=span.stop - span.start, body=body, start=span.start)
        for span, body in zip(spans, bodies, strict=True)
        if span.stop > span.start
    )


def _ids(node: Node, span: Span) -> Int32s:
    return (node.input_ids + node.output_ids)[span.start * _TOKEN_BYTES : span.stop * _TOKEN_BYTES]


def _logprobs(node: Node, span: Span, mask: bytearray) -> Float32s:
    if not mask.count(1, span.start, span.stop):
        return bytes((span.stop - span.start) * _TOKEN_BYTES)
    own = bytes(len(node.input_ids)) + node.logprobs
    values = floats(own[span.start * _TOKEN_BYTES : span.stop * _TOKEN_BYTES])
    kept = mask[span.start : span.stop]
    return pack_floats(value if carries else 0.0 for value, carries in zip(values, kept, strict=True))


def _length(nodes: Nodes, call: str) -> int:
    """Tokens of a call's whole path: what it took of its parent's, its input and its output."""
    node = nodes.get(call)
    if node is None:
        raise ValueError(f"call {call} is not in the tree: build the tree from all of the execution's records")
    return node.prefix_tokens + (len(node.input_ids) + len(node.output_ids)) // _TOKEN_BYTES


def _prefix(nodes: Nodes, call: str) -> int:
    """Tokens that a call takes of its parent's path, checked against the parent."""
    node = nodes[call]
    there = 0 if node.parent is None else _length(nodes, node.parent)
    if node.prefix_tokens > there:
        raise ValueError(f"call {call}: prefix_tokens = {node.prefix_tokens} > {there} of its parent: broken record")
    return node.prefix_tokens


def _hash(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest(), "big")
