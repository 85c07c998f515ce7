"""What engines generated for a call, and how the client's stop texts cut it. No engine is asked to know those.

What is kept, and recorded, ends with the token that completes the first stop text: the tokens behind it never happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gyre.proxy.chat_model import ChatModel
from schemas.calls import Finish, VersionSpan


@dataclass(frozen=True, slots=True)
class Experts:
    """Which experts were taken at the position before each of a call's own tokens."""

    rows: bytes
    """(I + O, layers, top k) int16; as `ModelCallRecorded.experts`."""
    width: int
    """Bytes of a row."""

    @classmethod
    def of(cls, told: bytes, tokens: int, *, root: bool) -> "Experts":
        """What engines told of a call's `tokens` own tokens; the first token of a root stands behind no position."""
        width = len(told) // (tokens - root)
        return cls(b"\xff" * (width if root else 0) + told, width)

    def leading(self, tokens: int) -> bytes:
        """The rows of the first tokens."""
        return self.rows[: tokens * self.width]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the engines generated for a plan, in one piece however often it was moved."""

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Finish
    cells: tuple[int, ...]
    cached_tokens: int
    queue_seconds: float
    engine_seconds: float
    stop_sequence: str = ""
    """The stop text that the output ends with: what the client sees is cut before it."""
    experts: Experts | None = None
    """None: no engine told. A cut leaves the rows of what was cut away behind the others."""


def cut(model: ChatModel, ends: Sequence[int], drawn: Drawn, stops: Sequence[str]) -> Drawn:
    """An answer up to its first stop text, its end mark (one of `ends`) not looked at; as it is if there is none."""
    ids = drawn.output_ids
    size = len(ids) - (bool(ids) and ids[-1] in ends)
    if not stops or not _first(model.decode(ids[:size]), stops):
        return drawn
    least, most = 1, size
    while least < most:
        middle = (least + most) // 2
        if _first(model.decode(ids[:middle]), stops):
            most = middle
        else:
            least = middle + 1
    return replace(
        drawn,
        output_ids=ids[:least],
        logprobs=drawn.logprobs[:least],
        versions=_leading(drawn.versions, least),
        finish="stop",
        stop_sequence=_first(model.decode(ids[:least]), stops),
    )


def _first(text: str, stops: Sequence[str]) -> str:
    """The stop text that comes first in a text; "" for none."""
    return min(((place, stop) for stop in stops if (place := text.find(stop)) >= 0), default=(0, ""))[1]


def _leading(spans: Sequence[VersionSpan], tokens: int) -> tuple[VersionSpan, ...]:
    """The spans of the first tokens."""
    kept: list[VersionSpan] = []
    for span in spans:
        if taken := min(span.tokens, tokens):
            kept.append(VersionSpan(version=span.version, tokens=taken))
        tokens -= taken
    return tuple(kept)
