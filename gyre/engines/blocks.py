"""Keys and values of an execution, on their way from one engine to another. Imports no torch.

On the wire: the length of a JSON header (uint32, little-endian), the header (key, version, and of each sequence its
number of tokens and shape), then of each sequence its token ids and its data, as they lie in memory.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.base import Int32s

_LENGTH_BYTES = 4
_VALUE_BYTES = 4
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KvSequence:
    """What an engine keeps of one sequence.

    Raises:
        ValueError: the data is not of the size that tokens and shape say.
    """

    token_ids: Int32s
    shape: Shape
    """Layers, key-value heads, dimension of a head; (0, 0, 0) of an engine that computes nothing."""
    data: bytes | memoryview
    """Little-endian float32, (2, layers, heads, tokens, dim): all keys, then all values."""

    def __post_init__(self) -> None:
        layers, heads, dim = self.shape
        wanted = 2 * layers * heads * self.tokens * dim * _VALUE_BYTES
        if len(self.token_ids) % _VALUE_BYTES or len(self.data) != wanted:
            raise ValueError(f"data: {len(self.data)} bytes, {self.tokens} tokens of shape {self.shape} need {wanted}")

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values these are."""
        return len(self.token_ids) // _VALUE_BYTES


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """All that an engine keeps under one cache key, computed by one version of the weights."""

    key: str
    version: int
    sequences: tuple[KvSequence, ...]

    @property
    def tokens(self) -> int:
        """Of all sequences together."""
        return sum(sequence.tokens for sequence in self.sequences)

    def packed(self) -> bytes:
        """As they travel."""
        of_each = [[sequence.tokens, *sequence.shape] for sequence in self.sequences]
        header = json.dumps({"key": self.key, "version": self.version, "sequences": of_each}).encode()
        parts: list[bytes | memoryview] = [len(header).to_bytes(_LENGTH_BYTES, "little"), header]
        for sequence in self.sequences:
            parts += [sequence.token_ids, sequence.data]
        return b"".join(parts)

    @classmethod
    def unpacked(cls, body: bytes) -> "KvBlocks":
        """Raises ValueError where the bytes are not what `packed` makes."""
        view = memoryview(body)
        end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
        try:
            header: dict[str, Any] = json.loads(bytes(view[_LENGTH_BYTES:end]))
            sequences = _sequences(view[end:], header["sequences"])
            return cls(str(header["key"]), int(header["version"]), sequences)
        except (KeyError, TypeError) as error:
            raise ValueError(f"header: {error}") from error


def _sequences(rest: memoryview, sizes: Sequence[Sequence[int]]) -> tuple[KvSequence, ...]:
    found = []
    for tokens, layers, heads, dim in sizes:
        ids = tokens * _VALUE_BYTES
        end = ids + 2 * layers * heads * tokens * dim * _VALUE_BYTES
        found.append(KvSequence(bytes(rest[:ids]), (layers, heads, dim), rest[ids:end]))
        rest = rest[end:]
    if len(rest):
        raise ValueError(f"{len(rest)} bytes are left behind the last sequence")
    return tuple(found)
