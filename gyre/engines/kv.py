"""Keys and values of many sequences in one preallocated block a layer, of any lengths, read as views.

Rows are dense from 0: whoever removes one moves the last into its place. Nothing is gathered when a step reads rows
[0, n) and columns [0, L): attention sees views, and a mask hides what lies beyond each row's own length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from gyre.engines.blocks import Shape


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys and values of one sequence: for each layer (heads, tokens, dim)."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


def packed_segment(segment: Segment) -> tuple[Shape, memoryview]:
    """(layers, heads, dim) and the float32 bytes of `gyre.engines.blocks`: (2, layers, heads, tokens, dim)."""
    stacked = torch.stack([*segment.keys, *segment.values])  # (2 * layers, heads, tokens, dim), keys first
    heads, _, dim = segment.keys[0].shape
    return (len(segment.keys), heads, dim), stacked.numpy().astype("<f4", copy=False).data.cast("B")


def unpacked_segment(shape: Shape, tokens: int, data: bytes | memoryview) -> Segment:
    """The segment of such bytes, in memory of its own."""
    layers, heads, dim = shape
    values = np.frombuffer(data, "<f4").reshape(2 * layers, heads, tokens, dim)
    blocks = torch.from_numpy(values.astype(np.float32)).unbind(0)
    return Segment(blocks[:layers], blocks[layers:])


class SlotCache(Cache):
    """A transformers cache whose rows are sequences of different lengths.

    Blocks are (rows, heads, length, dim) a layer, zeroed when made (a masked column must still be finite, or 0 * NaN
    would spread) and doubled as needed. Before a forward pass say where it writes: `at_ends` or `at_spans`.
    """

    def __init__(self, rows: int, length: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.length = length
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._row_index = torch.arange(0)
        self._positions = torch.arange(0)
        self._spans: Sequence[tuple[int, int]] | None = None
        self._window = 0

    def reserve(self, rows: int, length: int) -> None:
        """Make room for this many rows and tokens a row; what is stored stays."""
        if rows <= self.rows and length <= self.length:
            return
        self.rows = max(rows, 2 * self.rows) if rows > self.rows else self.rows
        self.length = max(length, 2 * self.length) if length > self.length else self.length
        self._keys = [self._grown(block) for block in self._keys]
        self._values = [self._grown(block) for block in self._values]

    def at_ends(self, positions: Tensor, window: int) -> None:
        """Next pass: one new token for each of n rows, row r's at column positions[r]; reads `window` columns."""
        self._row_index = torch.arange(positions.shape[0])
        self._positions, self._spans, self._window = positions, None, window

    def at_spans(self, spans: Sequence[tuple[int, int]], window: int) -> None:
        """Next pass: row r's first `count` new tokens go to columns from `start`, for its (start, count) of spans."""
        self._spans, self._window = spans, window

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write (n, heads, new, dim) where the plan says; returns views (n, heads, window, dim) of keys and values."""
        self._ensure(layer_idx, key_states[0], value_states[0])
        read = []
        for block, states in ((self._keys[layer_idx], key_states), (self._values[layer_idx], value_states)):
            if self._spans is None:
                block[self._row_index, :, self._positions] = states[:, :, 0]
            else:
                for row, (start, count) in enumerate(self._spans):
                    block[row, :, start : start + count] = states[row, :, :count]
            read.append(block[: states.shape[0], :, : self._window])
        return read[0], read[1]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy a row over another one of this cache."""
        for block in (*self._keys, *self._values):
            block[target, :, :tokens] = block[source, :, :tokens]

    def copy_out(self, row: int, tokens: int) -> Segment:
        """A copy of the first `tokens` of a row."""
        return Segment(
            tuple(block[row, :, :tokens].clone() for block in self._keys),
            tuple(block[row, :, :tokens].clone() for block in self._values),
        )

    def view(self, row: int, tokens: int) -> Segment:
        """The first `tokens` of a row, not copied: valid until the next write."""
        return Segment(
            tuple(block[row, :, :tokens] for block in self._keys),
            tuple(block[row, :, :tokens] for block in self._values),
        )

    def copy_in(self, row: int, segment: Segment, tokens: int) -> None:
        """Write the first `tokens` of a segment into a row, from column 0."""
        for layer, (keys, values) in enumerate(zip(segment.keys, segment.values, strict=True)):
            self._ensure(layer, keys, values)
            self._keys[layer][row, :, :tokens] = keys[:, :tokens]
            self._values[layer][row, :, :tokens] = values[:, :tokens]

    def _ensure(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Make a layer's blocks when it is first seen, shaped after one row's (heads, tokens, dim)."""
        if layer == len(self._keys):
            for blocks, row in ((self._keys, keys), (self._values, values)):
                blocks.append(row.new_zeros(self.rows, row.shape[0], self.length, row.shape[2]))

    def _grown(self, block: Tensor) -> Tensor:
        rows, heads, length, dim = block.shape
        grown = block.new_zeros(self.rows, heads, self.length, dim)
        grown[:rows, :, :length] = block
        return grown


def visible(positions: Tensor, window: int) -> Tensor:
    """The additive mask (n, 1, T, window): a token at position p sees columns 0..p.

    Made once a step and in float: handed a boolean one, every layer would convert it again.

    Args:
        positions: (n, T) int64, not negative.
        window: columns that the cache returns.
    """
    hidden = torch.arange(window) > positions[:, None, :, None]
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
