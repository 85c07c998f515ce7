"""New weights as tensors in requests: the server needs neither our files nor a way back to us (0.5.23).

What the server does otherwise than one would wish, and what is done about it:

- SGLang's own clients send where tensors lie in memory that both sides share. It also unpickles a storage that is told
  with all its bytes, and tensors in it; it takes few classes more, and neither storages without a type nor any other
  way to tell 8-bit floats.
- Each rank reads a payload of its own, of whole tensors: all get the same one, and a bucket is bounded over all ranks.
- A payload that it cannot read ends it, as does a tensor that does not fit: shapes are checked first.
"""

import asyncio
import base64
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from gyre.engines.sglang.client import Client
from gyre.engines.sglang.files import Shapes, check_shapes
from gyre.engines.sglang.session import Bucket, marks, session, within

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 1 << 26
"""Of tensors in one request, counted once for each rank; a larger tensor goes alone."""

Read = Callable[[], "Tensor"]
"""A bucket's tensors, (bytes,) uint8. OSError."""


@dataclass(frozen=True, slots=True)
class Source:
    """Tensors that can be read in buckets."""

    shapes: Shapes
    """Name -> shape of all of them."""
    cut: Callable[[int], Sequence[tuple[Bucket, Read]]]
    """Into buckets of at most so many bytes."""


async def hand_over(source: Source, client: Client, model: Shapes, version: int) -> None:
    """A `Send` once it knows what."""
    ranks = await client.ranks()
    check_shapes(source.shapes, model)
    buckets = source.cut(BUCKET_BYTES // ranks)
    async with session(client, "tensors"):
        for number, (bucket, read) in enumerate(buckets, 1):
            payload = await asyncio.to_thread(_payload, bucket, read)
            told = marks(version, last=number == len(buckets))
            await within(client.load_tensors({"serialized_named_tensors": [payload] * ranks, **told}))


def _payload(bucket: Bucket, read: Read) -> str:
    flat: Any = read()
    storage, start = flat._typed_storage(), 0  # noqa: SLF001 - the public one warns, and is this
    named: list[tuple[str, _Told]] = []
    for name, dtype, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
        named.append((name, _Told(storage, start, shape, dtype)))
        start += prod(shape)
    return base64.b64encode(pickle.dumps(named)).decode()


@dataclass(frozen=True, slots=True)
class _Told:
    """A tensor that is part of a storage, as it is pickled; the storage once for all that lie in it."""

    storage: Any
    start: int
    """Values before it, all of one width."""
    shape: tuple[int, ...]
    dtype: str

    def __reduce__(self) -> tuple[Any, ...]:
        import torch

        strides = tuple(prod(self.shape[place + 1 :]) for place in range(len(self.shape)))
        kind: torch.dtype = getattr(torch, self.dtype)
        rebuild = torch._utils._rebuild_tensor_v3  # noqa: SLF001 - what pickled tensors name
        return rebuild, (self.storage, self.start, self.shape, strides, False, OrderedDict(), kind)
