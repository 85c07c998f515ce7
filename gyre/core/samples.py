"""Admitted trajectories beside the tree they were drawn from: where each token came from, and whether a draw repeats.

A sample is rebuilt from the recorded event alone; the tree only tells of its tokens what the event leaves out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from gyre.core.admission import Span, draw, path
from gyre.core.tree import Node, Tree, path_ids
from schemas.base import Float32s
from schemas.rewards import LeafSummary
from schemas.training import TrajectoriesAdmitted, Trajectory

_TOKEN_BYTES = 4
Source = Literal["input", "sampled", "unknown"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a sample that have one origin."""

    start: int
    stop: int
    call: str | None
    """The call whose record holds them; None when the tree does not have this path."""
    source: Source
    target: bool
    version: int | None
    """Policy version that sampled them."""
    logprobs: Float32s
    """(stop - start,) behaviour log-probabilities, nats; empty for what was not sampled."""


def pieces(tree: Tree, trajectory: Trajectory) -> tuple[Piece, ...]:
    """A sample's tokens by origin, in order and without a gap.

    Args:
        tree: of the execution; may lack the path, and then every origin is unknown.
        trajectory: as recorded.
    """
    if not _is_there(tree, trajectory):
        return tuple(_cut(trajectory, 0, len(trajectory.target), None, "unknown", None))
    found: list[Piece] = []
    for span in path(tree.nodes, trajectory.leaf):
        begin = found[-1].stop if found else 0
        found += _of_span(trajectory, tree.nodes[span.call], span, begin)
    return tuple(found)


def difference(tree: Tree, leaves: Sequence[LeafSummary], event: TrajectoriesAdmitted, *, j_max: int) -> str | None:
    """How the recorded samples differ from a fresh draw with the recorded seed; None: not at all.

    Args:
        tree: of the execution.
        leaves: its classified leaves; () when the execution trains nothing (no valid reward).
        event: what admission recorded.
        j_max: most draws.
    """
    try:
        fresh = draw(tree.nodes, leaves, j_max=j_max, seed=event.seed)
    except ValueError as error:
        return f"no draw is possible: {error}"
    if len(fresh) != len(event.trajectories):
        return f"a fresh draw gives {len(fresh)} trajectories, recorded {len(event.trajectories)}"
    for number, (again, recorded) in enumerate(zip(fresh, event.trajectories, strict=True), 1):
        fields = [name for name in Trajectory.model_fields if getattr(again, name) != getattr(recorded, name)]
        if fields:
            return (
                f"draw {number}: a fresh draw takes {again.leaf}, recorded {recorded.leaf}; {', '.join(fields)} differ"
            )
    total = sum(each.targets for each in fresh)
    return None if total == event.targets else f"a fresh draw has {total} targets, recorded L_i = {event.targets}"


def _is_there(tree: Tree, trajectory: Trajectory) -> bool:
    return trajectory.leaf in tree.nodes and path_ids(tree, trajectory.leaf) == trajectory.ids


def _of_span(trajectory: Trajectory, node: Node, span: Span, begin: int) -> Iterator[Piece]:
    """The span's own input, then its output in runs of one policy version."""
    inputs = len(node.input_ids) // _TOKEN_BYTES
    told = begin + min(span.stop, inputs)
    stop = begin + span.stop
    yield from _cut(trajectory, begin, told, node, "input", None)
    runs = [(version.version, version.tokens) for version in node.versions]
    first = begin + inputs
    for version, tokens in runs:
        yield from _cut(
            trajectory, min(first, stop), min(first + tokens, stop), node, "sampled", version, begin + inputs
        )
        first += tokens
    yield from _cut(trajectory, max(told, min(first, stop)), stop, node, "sampled", None, begin + inputs)


def _cut(
    trajectory: Trajectory,
    start: int,
    stop: int,
    node: Node | None,
    source: Source,
    version: int | None,
    sampled_from: int = 0,
) -> Iterator[Piece]:
    """Tokens of one origin in runs that are targets or are not."""
    ends = [start]
    for _, run in groupby(trajectory.target[start:stop]):
        ends.append(ends[-1] + len(list(run)))
    for first, last in pairwise(ends):
        target = trajectory.target[first] == 1
        held = node.logprobs if node is not None and source == "sampled" else b""
        own = held[(first - sampled_from) * _TOKEN_BYTES : (last - sampled_from) * _TOKEN_BYTES]
        recorded = trajectory.logprobs[first * _TOKEN_BYTES : last * _TOKEN_BYTES]
        yield Piece(first, last, node.call if node else None, source, target, version, recorded if target else own)
