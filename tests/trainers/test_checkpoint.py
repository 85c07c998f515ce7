"""Files by digest: durable, whole or absent, and refused when they are not what the log says."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch

from gyre.trainers import checkpoint
from gyre.trainers.checkpoint import file_digest, load_tensors, locate, prune, save_tensors, spare
from gyre.trainers.port import WeightsRefused
from schemas.refs import WeightsRef

TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}


def test_a_file_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    reference = save_tensors(TENSORS, tmp_path, "weights")
    path = locate(tmp_path, reference)
    assert path == tmp_path / "weights" / f"{file_digest(path)}.safetensors"
    assert reference.size == path.stat().st_size
    assert all(torch.equal(each, TENSORS[name]) for name, each in load_tensors(path).items())
    assert save_tensors({"b": TENSORS["b"], "w": TENSORS["w"].clone()}, tmp_path, "weights") == reference
    assert len(list((tmp_path / "weights").iterdir())) == 1


def test_file_then_folder_are_flushed_around_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    flush, rename = checkpoint.flush, os.replace

    def seen_flush(path: Path) -> None:
        done.append("folder" if path.is_dir() else "file")
        flush(path)

    def seen_rename(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(checkpoint, "flush", seen_flush)
    monkeypatch.setattr(os, "replace", seen_rename)
    save_tensors(TENSORS, tmp_path, "optimizer")
    assert done == ["file", "rename", "folder"]


def test_a_write_that_fails_is_the_systems_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))  # files end after so many bytes, as a disk might
    try:
        with pytest.raises(OSError, match="File too large") as refusal:
            save_tensors(TENSORS, tmp_path, "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refusal.value.errno == errno.EFBIG
    assert not list((tmp_path / "weights").iterdir())


def test_damage_of_any_kind_is_refused(tmp_path: Path) -> None:
    reference = save_tensors(TENSORS, tmp_path, "weights")
    path = tmp_path / reference.address
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(WeightsRefused, match="digest"):
        locate(tmp_path, reference)
    path.write_bytes(whole[:-1])
    with pytest.raises(WeightsRefused, match="bytes, the log says"):
        locate(tmp_path, reference)
    with pytest.raises(WeightsRefused, match="not a readable safetensors file"):
        load_tensors(path)
    path.unlink()
    with pytest.raises(WeightsRefused, match="missing"):
        locate(tmp_path, reference)


def test_an_address_cannot_lead_out_of_the_run_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightsRefused, match="leads out of the run folder"):
        locate(tmp_path, WeightsRef(digest="0" * 64, size=1, address="../elsewhere.safetensors"))


def test_pruning_keeps_what_is_named_and_what_is_not_its_own(tmp_path: Path) -> None:
    kept = save_tensors(TENSORS, tmp_path, "weights")
    save_tensors({"w": torch.zeros(1)}, tmp_path, "weights")
    save_tensors({"m": torch.zeros(1)}, tmp_path, "optimizer")
    (tmp_path / "weights" / "half.tmp").touch()
    (tmp_path / "weights" / "notes.txt").touch()
    found = spare(tmp_path, [kept])
    assert len(found) == 3
    prune(found)
    assert sorted(each.name for each in (tmp_path / "weights").iterdir()) == [f"{kept.digest}.safetensors", "notes.txt"]
    assert spare(tmp_path, [kept]) == ()
    prune(found)  # somebody else was faster
