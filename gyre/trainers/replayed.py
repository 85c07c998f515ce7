"""The experts that a micro-step's tokens took in the engine, from where records keep them, for routing replay (R3).

Records have them by token: those of the position before it, which drew or would have drawn it. Here they are by
position, so that of a segment's last one, which predicts nothing, nothing is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre.trainers.port import MicroStepRefused
from schemas.refs import BlobRef
from schemas.training import ExpertSpan, MicroStepEnqueued, Segment

UNKNOWN = -1
Taken = NDArray[np.int16]
"""(T, layers, top k): by position, -1 where unknown."""
RowExperts = Sequence[Taken | None]
"""Of a row's segments; None where nothing is known of any position."""
Read = Callable[[BlobRef], bytes]
"""The body behind a claim check; raises `MicroStepRefused`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a position has."""

    layers: int
    top_k: int
    experts: int
    """Of each layer."""


def experts_of(enqueued: MicroStepEnqueued, shape: Shape, read: Read) -> tuple[RowExperts, ...]:
    """Those of each row's segments.

    Args:
        enqueued: the micro-step.
        shape: the model's.
        read: each body is asked for once.
    Raises:
        MicroStepRefused: a body is missing, or is none of this model's or of this segment's; names the segment.
    """
    known: dict[str, bytes] = {}

    def once(reference: BlobRef) -> bytes:
        if reference.digest not in known:
            known[reference.digest] = read(reference)
        return known[reference.digest]

    return tuple(tuple(_segment(each, shape, once) for each in row.segments) for row in enqueued.rows)


def _segment(segment: Segment, shape: Shape, read: Read) -> Taken | None:
    if not segment.experts:
        return None
    tokens = len(segment.target)
    told = sum(span.tokens for span in segment.experts)
    if told != tokens:
        raise _refused(segment, f"experts of {told} tokens, the segment has {tokens}")
    by_token = np.full((tokens, shape.layers, shape.top_k), UNKNOWN, np.int16)
    start = 0
    for span in segment.experts:
        if span.body is not None:
            by_token[start : start + span.tokens] = _rows(segment, span, read(span.body), shape)
        start += span.tokens
    if by_token.max() >= shape.experts:
        raise _refused(segment, f"expert {by_token.max()}: the model has {shape.experts} a layer")
    return np.concatenate((by_token[1:], np.full_like(by_token[:1], UNKNOWN)))


def _rows(segment: Segment, span: ExpertSpan, body: bytes, shape: Shape) -> Taken:
    found, each = np.frombuffer(body, "<i2"), shape.layers * shape.top_k
    held = found.size // each
    if found.size % each or span.start + span.tokens > held:
        wanted = f"{span.start + span.tokens} tokens x {shape.layers} layers x {shape.top_k}"
        raise _refused(segment, f"{found.size} experts are recorded, of {wanted}: they are another model's or tokens'")
    return found.reshape(held, shape.layers, shape.top_k)[span.start : span.start + span.tokens]


def _refused(segment: Segment, problem: str) -> MicroStepRefused:
    return MicroStepRefused(f"execution {segment.execution}, leaf {segment.leaf}: {problem}")
