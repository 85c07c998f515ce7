"""The experts that a server's model took (`return_routed_experts`), from what it answers.

The server keeps them beside its keys and values, by place in memory. Where caches go through shared storage, a prefix
that came from there has none: what lies at its places is of other tokens. Only what was computed is taken then.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gyre.engines.port import EngineFailed

UNKNOWN = -1
SILENT = (
    "does not tell which experts its model takes: start it with --enable-return-routed-experts, or set "
    "trainer.routing_replay = false"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one position."""

    layers: int
    top_k: int


def shape_of(model: Path) -> Shape | None:
    """For a model folder; None where its model has no experts."""
    config = json.loads((model / "config.json").read_text())
    if not (config.get("num_experts") or config.get("num_local_experts")):
        return None
    return Shape(int(config["num_hidden_layers"]), int(config["num_experts_per_tok"]))


def rows_of(answer: str | None, shape: Shape, positions: range, unknown: int) -> bytes:
    """(positions, layers, top k) little-endian int16.

    Args:
        answer: base64 of int32, as the server gives it.
        shape: of one position.
        positions: that were asked for.
        unknown: positions below this one are not told, -1 throughout.
    Raises:
        EngineFailed: the server told nothing, or of other positions.
    """
    if answer is None:
        raise EngineFailed(f"SGLang {SILENT}")
    found = np.frombuffer(base64.b64decode(answer), "<i4")
    if found.size != len(positions) * shape.layers * shape.top_k:
        told = f"{found.size} experts of {len(positions)} positions x {shape.layers} layers x {shape.top_k}"
        raise EngineFailed(f"SGLang answered {told}: they cannot be told apart")
    rows = found.reshape(len(positions), shape.layers, shape.top_k).astype("<i2")
    rows[: max(0, unknown - positions.start)] = UNKNOWN
    return rows.tobytes()
