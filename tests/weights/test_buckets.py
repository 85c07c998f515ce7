"""A file cut into buckets, and what a server reads of one that comes in a request."""

import asyncio
import base64
import io
import pickle
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.engines.port import WeightsRefused
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.tensors import BUCKET_BYTES, Source, _payload, hand_over
from gyre.weights.buckets import DTYPES, cut
from gyre.weights.layout import WIDTHS, Part, read_layout
from tests.weights.files import write

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tables = st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=12)


def parts_of(table: list[tuple[str, tuple[int, ...]]]) -> list[Part]:
    begin, found = 100, []
    for number, (kind, shape) in enumerate(table):
        end = begin + prod(shape) * WIDTHS[kind]
        found.append(Part(f"t{number}", kind, shape, begin, end))
        begin = end
    return found


@given(tables, st.integers(1, 300))
def test_buckets_hold_every_tensor_once_in_order_and_no_more_than_they_may(
    table: list[tuple[str, tuple[int, ...]]], most: int
) -> None:
    parts = parts_of(table)
    spans = cut(parts, most)
    assert [name for each in spans for name in each.bucket.names] == [each.name for each in parts]
    assert [shape for each in spans for shape in each.bucket.shapes] == [each.shape for each in parts]
    assert all(before.end == after.begin for before, after in pairwise(spans))
    for each in spans:
        assert len(set(each.bucket.dtypes)) == 1
        assert each.end - each.begin <= most or len(each.bucket.names) == 1


class Strict(pickle.Unpickler):
    """Takes what a payload needs, which SGLang's takes too, and nothing else."""

    TAKEN = frozenset({("torch._utils", "_rebuild_tensor_v3"), ("collections", "OrderedDict")})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda body: torch.load(io.BytesIO(body), weights_only=True)
        if (module, name) in self.TAKEN or (module == "torch" and name in DTYPES.values()):
            return super().find_class(module, name)
        raise AssertionError(module, name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    table = {f"{kind}-{n}": (kind, shape) for kind in DTYPES for n, shape in enumerate([(3, 5), (), (0, 2), (4, 1, 2)])}
    tensors = {name: (kind, shape, chance.bytes(prod(shape) * WIDTHS[kind])) for name, (kind, shape) in table.items()}
    write(tensors, tmp_path / "weights")
    return tmp_path / "weights"


def test_a_payload_gives_the_files_bits_in_every_kind_of_values(file: Path) -> None:
    body = file.read_bytes()
    parts = {each.name: each for each in read_layout(file).parts}
    for span in cut(list(parts.values()), BUCKET_BYTES):
        payload = base64.b64decode(_payload(span.bucket, lambda span=span: span.read(file)))  # type: ignore[misc]
        found = Strict(io.BytesIO(payload)).load()
        assert [name for name, _ in found] == list(span.bucket.names)
        for name, tensor in found:
            part = parts[name]
            assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{DTYPES[part.kind]}", part.shape)
            assert tensor.is_contiguous()
            assert tensor.flatten().view(torch.uint8).numpy().tobytes() == body[part.begin : part.end]


def test_a_payload_tells_each_byte_once(tmp_path: Path) -> None:
    write({f"t{n}": ("F32", (1000,), bytes(4000)) for n in range(50)}, tmp_path / "weights")
    (span,) = cut(read_layout(tmp_path / "weights").parts, BUCKET_BYTES)
    assert len(_payload(span.bucket, lambda: span.read(tmp_path / "weights"))) < 1.4 * 200_000


class Taking(Client):
    """Notes what a server of so many ranks is told."""

    def __init__(self, count: int) -> None:
        super().__init__("http://nowhere")
        self.count, self.told = count, list[Any]()

    async def ranks(self) -> int:
        return self.count

    async def begin_update(self) -> None:
        self.told.append("begin")

    async def end_update(self) -> None:
        self.told.append("end")

    async def load_tensors(self, body: Any) -> None:
        self.told.append(body)


def source(file: Path, asked: list[int]) -> Source:
    def pieces(most: int) -> Any:
        asked.append(most)
        return [(each.bucket, lambda each=each: each.read(file)) for each in cut(parts, 40)]  # type: ignore[misc]

    parts = read_layout(file).parts
    return Source({each.name: each.shape for each in parts}, pieces)


def test_the_version_and_the_flush_come_with_the_last_bucket_and_the_same_for_every_rank(file: Path) -> None:
    client, asked = Taking(4), list[int]()
    given = source(file, asked)
    asyncio.run(hand_over(given, client, given.shapes, 7))
    begin, *bodies, end = client.told
    assert (begin, end) == ("begin", "end")
    assert asked == [BUCKET_BYTES // 4]
    assert len(bodies) > 2
    assert all(len(each["serialized_named_tensors"]) == 4 for each in bodies)
    assert all(len(set(each["serialized_named_tensors"])) == 1 for each in bodies)
    assert [each.get("weight_version") for each in bodies] == [None] * (len(bodies) - 1) + ["7"]
    assert [each["flush_cache"] for each in bodies] == [False] * (len(bodies) - 1) + [True]


def test_tensors_that_do_not_fit_are_refused_before_the_server_hears_of_them(file: Path) -> None:
    client, given = Taking(1), source(file, [])
    with pytest.raises(WeightsRefused, match="has shape"):
        asyncio.run(hand_over(given, client, {**given.shapes, "F32-0": (5, 3)}, 7))
    assert client.told == []
