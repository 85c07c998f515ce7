"""A delta gives back the second file from the first, bit for bit, or refuses."""

import hashlib
import json
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.torch import file_state
from gyre.weights.delta import MAGIC, apply_delta, make_delta, read_table
from gyre.weights.layout import WIDTHS
from gyre.weights.port import WeightsUnusable
from tests.engines.conftest import make_llama
from tests.weights.files import Tensors, write

KINDS = ("F32", "BF16", "F16", "F64", "I8")
Made = tuple[Path, Path, Path, tuple[str, str]]
"""A base, a new file, their delta, and the digests of the two files."""
SPECIAL = {
    "F32": [0x00000000, 0x80000000, 0x7F800001, 0x7FC00000, 0xFFC12345, 0x7F800000],
    "BF16": [0x0000, 0x8000, 0x7F81, 0x7FC0, 0xFFC1, 0x7F80],
    "F16": [0x0000, 0x8000, 0x7C01, 0x7E00, 0xFE01, 0x7C00],
}
"""0.0, -0.0, a signalling NaN, a quiet one, one with a payload, infinity."""


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensors, Tensors]:
    """Two files' tensors: some the same, some changed here and there, some new, gone or of another shape."""
    before: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    after: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        count = draw(st.sampled_from([0, 1, 3, 64, 700]))
        chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        most = 2 ** (8 * WIDTHS[kind]) - 1
        old = chance.integers(0, most, count, dtype=np.uint64, endpoint=True).astype(f"<u{WIDTHS[kind]}")
        new = old.copy()
        where = chance.random(count) < draw(st.sampled_from([0.0, 0.01, 0.2, 1.0]))
        new[where] = chance.choice(np.array(SPECIAL.get(kind, [0, most]), dtype="<u8"), int(where.sum()))
        fate = draw(st.sampled_from(["kept", "kept", "kept", "new", "gone", "reshaped"]))
        if fate != "new":
            before[f"t{number}"] = (kind, (count,), old.tobytes())
        if fate != "gone":
            shape = (1, count) if fate == "reshaped" else (count,)
            after[f"t{number}"] = (kind, shape, new.tobytes())
    return before, after


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_applied_to_the_first_file_it_gives_the_second_bit_for_bit(pair: tuple[Tensors, Tensors]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, new, delta, found = (folder / each for each in ("base", "new", "delta", "found"))
        digests = write(pair[0], base), write(pair[1], new)
        make_delta(base, new, digests, delta)
        apply_delta(delta, base, digests[1], found)
        assert found.read_bytes() == new.read_bytes()


@settings(max_examples=150, deadline=None)
@given(pairs(), st.data())
def test_a_damaged_delta_is_refused_and_leaves_nothing(pair: tuple[Tensors, Tensors], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, new, delta, found = (folder / each for each in ("base", "new", "delta", "found"))
        digests = write(pair[0], base), write(pair[1], new)
        make_delta(base, new, digests, delta)
        whole = bytearray(delta.read_bytes())
        if data.draw(st.booleans()):
            del whole[data.draw(st.integers(0, len(whole) - 1)) :]
        else:
            whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        delta.write_bytes(whole)
        try:
            apply_delta(delta, base, digests[1], found)
        except WeightsUnusable:
            assert sorted(each.name for each in folder.iterdir()) == ["base", "delta", "new"]
        else:  # only the sizes that it says of itself may be another
            assert found.read_bytes() == new.read_bytes()


def halves(**tensors: torch.Tensor) -> Tensors:
    return {
        name: ("BF16", tuple(each.shape), each.bfloat16().view(torch.uint8).numpy().tobytes())
        for name, each in tensors.items()
    }


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A base, a new file and their delta, which changes one value in fifty of one tensor of two."""
    torch.manual_seed(0)
    old, same = torch.randn(1000), torch.randn(300)
    new = torch.where(torch.arange(1000) % 50 == 0, old * 2, old)
    digests = write(halves(a=old, b=same), tmp_path / "base"), write(halves(a=new, b=same), tmp_path / "new")
    make_delta(tmp_path / "base", tmp_path / "new", digests, tmp_path / "delta")
    return tmp_path / "base", tmp_path / "new", tmp_path / "delta", digests


def test_what_is_the_same_costs_nothing_and_few_changes_cost_little(
    made: Made,
) -> None:
    base, _, delta, digests = made
    table = read_table(delta)
    assert (table.base, table.digest) == digests
    assert (table.values, table.changed) == (1300, 20)
    assert [how for how, _ in table.parts] == ["set", "same"]
    assert table.parts[1][1] == 0
    none = make_delta(base, base, (digests[0], digests[0]), delta)
    assert none.share == 0
    assert {how for how, _ in none.parts} == {"same"}


def test_small_changes_everywhere_are_told_by_the_exclusive_or(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"a": torch.randn(5000)}
    new = {"a": old["a"] * (1 + 1e-6)}
    for name, each in (("base", old), ("new", new)):
        save_file(each, tmp_path / name)
    digests = tuple(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("base", "new"))
    table = make_delta(tmp_path / "base", tmp_path / "new", (digests[0], digests[1]), tmp_path / "delta")
    assert table.share > 0.9
    assert [how for how, _ in table.parts] == ["xor"]
    assert (tmp_path / "delta").stat().st_size < 0.6 * (tmp_path / "new").stat().st_size


def test_tied_tensors_come_back_as_the_one_that_the_file_holds(tmp_path: Path) -> None:
    models = [make_llama(seed) for seed in (0, 1)]
    first, second = (save_tensors(file_state(model)[0], tmp_path, "weights") for model in models)
    base, new = tmp_path / first.address, tmp_path / second.address
    make_delta(base, new, (first.digest, second.digest), tmp_path / "delta")
    apply_delta(tmp_path / "delta", base, second.digest, tmp_path / "found")
    assert "lm_head.weight" not in load_file(tmp_path / "found")
    models[0].load_state_dict(load_file(tmp_path / "found"), strict=False)
    assert torch.equal(models[0].lm_head.weight, models[1].lm_head.weight)


def test_another_base_is_refused(made: Made, tmp_path: Path) -> None:
    _, new, delta, digests = made
    with pytest.raises(WeightsUnusable, match="the delta is of"):
        apply_delta(delta, new, digests[1], tmp_path / "found")
    with pytest.raises(WeightsUnusable, match="No such file"):
        apply_delta(delta, tmp_path / "nothing", digests[1], tmp_path / "found")


def test_the_delta_of_another_version_is_refused(made: Made, tmp_path: Path) -> None:
    base, _, delta, _ = made
    with pytest.raises(WeightsUnusable, match="wanted is 000000000000"):
        apply_delta(delta, base, "0" * 64, tmp_path / "found")


def bomb(size: int) -> bytes:
    return bytes(zstandard.ZstdCompressor().compress(bytes(size)))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (("set", zstandard.ZstdCompressor().compress(b"\xff" * 6)), "beyond its end"),
        (("set", zstandard.ZstdCompressor().compress(bytes(5))), "not whole changes"),
        (("set", zstandard.ZstdCompressor().compress(bytes(2 * 6))), "a value twice"),
        (("xor", bomb(1999)), "are not 1000 values"),
        (("xor", bomb(10**7)), "more than the 2000 bytes"),
        (("whole", b"no frame"), "cannot be unpacked"),
        (("same", b"x"), "no way to change"),
        (("grow", b""), "no way to change"),
        (("xor", bytes(10_000)), "are too many"),
    ],
)
def test_a_hostile_delta_is_refused(made: Made, tmp_path: Path, part: tuple[str, bytes], said: str) -> None:
    base, new, delta, digests = made
    size = struct.unpack("<Q", new.read_bytes()[:8])[0] + 8
    head = zstandard.ZstdCompressor().compress(new.read_bytes()[:size])
    table = {"base": digests[0], "digest": digests[1], "head": len(head), "values": 1300, "changed": 1}
    body = json.dumps(table | {"parts": [[part[0], len(part[1])], ["same", 0]]}).encode()
    delta.write_bytes(MAGIC + struct.pack("<I", len(body)) + body + head + part[1])
    with pytest.raises(WeightsUnusable, match=said):
        apply_delta(delta, base, digests[1], tmp_path / "found")
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize("whole", [b"", b"\xff" * 20, MAGIC, MAGIC + b"\x02\0\0\0{}", MAGIC + b"\x04\0\0\0null"])
def test_what_is_no_delta_is_refused(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "delta").write_bytes(whole)
    with pytest.raises(WeightsUnusable, match="delta"):
        read_table(tmp_path / "delta")
    with pytest.raises(WeightsUnusable, match="cannot be read"):
        read_table(tmp_path / "nothing")
