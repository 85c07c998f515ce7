"""Folders are gone through while somebody moves what is in them; each story moves at the very step that matters."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.sandboxes.descent import descend
from gyre.sandboxes.folders import remove


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with folders in it, and one outside that holds the same names and secrets."""
    for name in ("ws/a/b", "ws/a/d", "ws/e", "host/b", "host/d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ws/a/b/one").write_text("one")
    (tmp_path / "ws/a/d/two").write_text("two")
    (tmp_path / "ws/e/three").write_text("three")
    (tmp_path / "host/d/secret").write_text("secret")
    return tmp_path


def names(place: Path, meanwhile: tuple[str, Callable[[], object]] | None = None, most: int = 100) -> list[str]:
    """All that is told below ws; something happens while one of them is held."""
    found: list[str] = []
    with contextlib.closing(descend(place / "ws", 3000, most, ours=False)) as told:
        for held in told:
            found.append(held.name)
            if meanwhile and held.name == meanwhile[0]:
                meanwhile[1]()
    return found


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_folders_come_before_what_is_in_them_by_name(place: Path) -> None:
    assert names(place) == ["a", "e", "a/b", "a/d", "a/b/one", "a/d/two", "e/three"]


def test_a_folder_that_becomes_a_link_to_the_hosts_is_not_entered(place: Path) -> None:
    def swap() -> None:
        shutil.rmtree(place / "ws/a")
        (place / "ws/a").symlink_to(place / "host")

    assert names(place, ("e", swap)) == ["a", "e", "e/three"]


def test_a_folder_on_the_way_that_becomes_a_link_leads_nowhere_else(place: Path) -> None:
    def swap() -> None:
        (place / "ws/a").rename(place / "elsewhere")
        (place / "ws/a").symlink_to(place / "host")

    found = names(place, ("a/b/one", swap))
    assert found == ["a", "e", "a/b", "a/d", "a/b/one", "a/d/two", "e/three"]  # of the folder that was there


def test_what_lies_above_a_folder_that_was_moved_is_not_told(place: Path) -> None:
    def move() -> None:
        (place / "host/b").rmdir()
        (place / "ws/a/b").rename(place / "host/b")

    assert names(place, ("a/b/one", move)) == ["a", "e", "a/b", "a/d", "a/b/one", "a/d/two", "e/three"]


@pytest.mark.parametrize("gone", ["a/b", "a"])
def test_what_is_removed_meanwhile_keeps_nothing_else_out(place: Path, gone: str) -> None:
    found = names(place, ("a/b/one", lambda: shutil.rmtree(place / "ws" / gone)))
    assert found == ["a", "e", "a/b", "a/d", "a/b/one", *(["a/d/two"] if gone == "a/b" else []), "e/three"]


@pytest.mark.parametrize("instead", ["link", "pipe", "nothing"])
def test_what_is_read_is_what_was_looked_at(place: Path, instead: str) -> None:
    file = place / "ws/e/three"
    with contextlib.closing(descend(place / "ws", 3000, 100, ours=False)) as told:
        held = next(held for held in told if held.name == "e/three")
        file.unlink()
        if instead == "link":
            file.symlink_to(place / "host/d/secret")
        elif instead == "pipe":
            os.mkfifo(file)
        assert held.read(3) == b"thr"


@pytest.mark.parametrize("leads", ["host", "nowhere", "ws"])
def test_a_link_in_the_place_of_the_top_is_not_followed(place: Path, leads: str) -> None:
    (place / "ws").rename(place / "moved")
    (place / "ws").symlink_to(leads)
    with pytest.raises(NotADirectoryError):
        names(place)


def test_a_top_that_is_not_there_is_not_taken_for_an_empty_one(place: Path) -> None:
    shutil.rmtree(place / "ws")
    with pytest.raises(FileNotFoundError):
        names(place)


def test_no_more_names_of_a_folder_are_looked_at_than_count(place: Path) -> None:
    for number in range(50):
        (place / f"ws/e/{number:02}").touch()
    found = names(place, most=10)
    assert len([name for name in found if name.startswith("e/")]) == 11


def test_a_deep_folder_takes_no_more_descriptors_than_a_flat_one(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    here = os.open(tmp_path / "ws", os.O_PATH)
    for _ in range(400):
        for name in ("a", "b"):
            os.mkdir(name, dir_fd=here)
        below = os.open("a", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = opened()
    with contextlib.closing(descend(tmp_path / "ws", 3000, 100, ours=False)) as told:
        assert max(opened() for _ in told) - before < 6
    assert opened() == before
    assert len(names(tmp_path)) == 800
    remove(tmp_path / "ws")
