"""Folders of every shape are measured and removed."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.sandboxes.folders import measure, remove, too_deep

NAMES = st.binary(min_size=1, max_size=40).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
TREES = st.recursive(st.binary(max_size=64), lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)


def grow(path: bytes, tree: object, modes: int) -> int:
    """Make it so; returns how many entries that is, `path` itself included."""
    if isinstance(tree, bytes):
        Path(os.fsdecode(path)).write_bytes(tree)
        return 1
    assert isinstance(tree, dict)
    Path(os.fsdecode(path)).mkdir()
    count = 1 + sum(grow(path + b"/" + name, inner, modes) for name, inner in tree.items())
    Path(os.fsdecode(path)).chmod(modes)
    return count


@settings(max_examples=60, deadline=None)
@given(tree=st.dictionaries(NAMES, TREES, max_size=4), modes=st.sampled_from([0o700, 0o755, 0o500, 0o000]))
def test_whatever_is_in_a_folder_goes_with_it(tree: dict[bytes, object], modes: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "box"
        entries = grow(os.fsencode(folder), tree, 0o700) - 1
        assert measure(folder).entries == entries
        for each, _, _ in os.walk(folder, topdown=False):
            Path(each).chmod(modes)
        remove(folder)
        assert list(Path(parent).iterdir()) == []


def test_a_tree_deeper_than_paths_is_found_too_deep_and_goes(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    here = os.open(box, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        assert too_deep(measure(box))
    finally:
        remove(box)
    assert not box.exists()


def test_bytes_on_disk_are_counted_and_holes_are_not(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(os.urandom(1 << 20))
    with (tmp_path / "sparse").open("w") as file:
        file.truncate(1 << 30)
    assert 1 << 20 <= measure(tmp_path).size_bytes < 2 << 20


def test_counting_stops_where_there_are_too_many(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text("")
    assert measure(tmp_path, most=5).entries == 6


@pytest.mark.parametrize("target", ["kept", "kept/file"])
def test_links_are_removed_and_what_they_lead_to_is_not(tmp_path: Path, target: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("here")
    box = tmp_path / "box"
    box.mkdir()
    (box / "out").symlink_to(tmp_path / target)
    remove(box)
    assert not box.exists()
    (tmp_path / "itself").symlink_to(tmp_path / "kept")
    remove(tmp_path / "itself")
    assert (tmp_path / "kept/file").read_text() == "here"
    remove(tmp_path / "never there")
