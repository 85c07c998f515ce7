"""One line of what an event said: its short fields as they are, of the others how much there is."""

import re
from collections.abc import Iterator
from typing import Any

from schemas.base import Model
from schemas.envelope import Event
from services.views.terminal import one_line

SHORT = 4
"""Entries of a list that are written out."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 8
"""Of a digest, characters."""
_WIDTH = 120
"""Of the line, characters."""


def saying(event: Event) -> str:
    """The fields of an event on one line that is not too long, without control characters."""
    parts = [part for name, value in event if name not in ("type", "v") for part in _part(name, value)]
    return one_line(" ".join(parts), _WIDTH)


def seconds(nanoseconds: int) -> str:
    """A span of time with its sign, in seconds."""
    return f"{nanoseconds / 1e9:+.3f} s"


def _part(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bytes):
        yield f"{name}={len(value)} bytes"
    elif isinstance(value, dict):
        yield f"{name}={len(value)} keys"
    elif isinstance(value, Model):
        digest = getattr(value, "digest", "")
        yield f"{name}={digest[:_SHOWN] or '...'}"
    elif isinstance(value, tuple):
        short = len(value) <= SHORT and all(isinstance(each, str | int | float) for each in value)
        yield f"{name}={','.join(map(_scalar, value)) or '-'}" if short else f"{name}: {len(value)}"
    elif value != "":
        yield f"{name}={_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text[:_SHOWN] if _DIGEST.fullmatch(text) else text
