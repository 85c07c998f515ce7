"""A checkpoint of several files: whole or absent, found by its digest, refused when it is not what was written."""

import os
from pathlib import Path

import pytest

from gyre.trainers import manifest
from gyre.trainers.checkpoint import locate, prune, save_tensors, spare
from gyre.trainers.manifest import NAME, Manifest, seal, written
from gyre.trainers.port import WeightsRefused
from schemas.refs import WeightsRef
from tests.trainers.test_checkpoint import TENSORS

PARTS = {"__0_0.distcp": b"first part", "__1_0.distcp": b"second part", ".metadata": b"where they lie"}


def sealed(run: Path, parts: dict[str, bytes] = PARTS, sequence: int = 42) -> WeightsRef:
    aside = run / "optimizer" / "half.tmp"
    aside.mkdir(parents=True)
    for name, body in parts.items():
        (aside / name).write_bytes(body)
    return seal(aside, Manifest(sequence, 3, "of a model", written(aside, sorted(parts))))


def test_a_checkpoint_is_named_by_its_manifest_and_says_where_in_the_log_it_was_made(tmp_path: Path) -> None:
    reference = sealed(tmp_path)
    folder = locate(tmp_path, reference)
    assert folder == tmp_path / "optimizer" / reference.digest
    assert reference.size == sum(map(len, PARTS.values()))
    found = Manifest.read(folder)
    assert (found.sequence, found.updates, found.model) == (42, 3, "of a model")
    found.check(folder)
    assert sealed(tmp_path) == reference
    assert sealed(tmp_path, sequence=43) != reference
    assert len(list((tmp_path / "optimizer").iterdir())) == 2


def test_files_then_the_manifest_then_folders_are_flushed_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    flush, rename = manifest.flush, os.replace

    def seen_flush(path: Path) -> None:
        done.append(path.name)
        flush(path)

    def seen_rename(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(manifest, "flush", seen_flush)
    monkeypatch.setattr(os, "replace", seen_rename)
    sealed(tmp_path)
    assert done == [*sorted(PARTS), NAME, "half.tmp", "rename", "optimizer"]


def test_damage_of_any_kind_is_refused(tmp_path: Path) -> None:
    reference = sealed(tmp_path)
    folder = tmp_path / reference.address
    part = folder / "__1_0.distcp"
    part.write_bytes(b"second Part")
    Manifest.read(locate(tmp_path, reference)).check(folder, ["__0_0.distcp"])
    with pytest.raises(WeightsRefused, match=r"__1_0\.distcp: digest .* the file is damaged"):
        Manifest.read(folder).check(folder)
    part.write_bytes(b"second")
    with pytest.raises(WeightsRefused, match="6 bytes, the manifest says 11"):
        locate(tmp_path, reference)
    part.unlink()
    with pytest.raises(WeightsRefused, match=r"__1_0\.distcp: missing"):
        locate(tmp_path, reference)
    with pytest.raises(WeightsRefused, match=r"__1_0\.distcp: missing"):
        Manifest.read(folder).check(folder)
    (folder / NAME).write_bytes((folder / NAME).read_bytes().replace(b"42", b"43"))
    with pytest.raises(WeightsRefused, match="the log says"):
        locate(tmp_path, reference)
    (folder / NAME).write_bytes(b"{")
    with pytest.raises(WeightsRefused, match="no readable checkpoint"):
        locate(tmp_path, reference)


def test_what_is_left_of_a_deleted_checkpoint_gives_way_to_the_same_one_anew(tmp_path: Path) -> None:
    reference = sealed(tmp_path)
    (tmp_path / reference.address / ".metadata").unlink()
    assert sealed(tmp_path) == reference
    Manifest.read(locate(tmp_path, reference)).check(tmp_path / reference.address)


def test_pruning_keeps_the_checkpoint_that_is_named_and_no_other(tmp_path: Path) -> None:
    kept, other = sealed(tmp_path), sealed(tmp_path, sequence=43)
    weights = save_tensors(TENSORS, tmp_path, "weights")
    (tmp_path / "optimizer" / "crashed.tmp").mkdir()
    (tmp_path / "optimizer" / "mine").mkdir()
    prune(found := spare(tmp_path, [kept, weights]))
    assert len(found) == 2
    assert not (tmp_path / other.address).exists()
    assert sorted(each.name for each in (tmp_path / "optimizer").iterdir()) == [kept.digest, "mine"]
    assert len(spare(tmp_path, [])) == 2
    prune(spare(tmp_path, []))
