"""Folders and files that are closed to us, by their mode or because they are somebody else's."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gyre.sandboxes.descent import descend

EVERYTHING = ["a", "e", "a/b", "a/d", "a/b/one", "a/d/two", "e/three"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with folders in it, of a user whom modes bind, as whom the test goes on."""
    before = os.geteuid()
    user = before or 65534
    with tempfile.TemporaryDirectory() as name:
        top = Path(name, "ws")
        for inner in ("a/b", "a/d", "e"):
            (top / inner).mkdir(parents=True)
        for file in ("a/b/one", "a/d/two", "e/three"):
            (top / file).write_text("kept")
        for path in (Path(name), top, *top.rglob("*")):
            os.chown(path, user, -1)
        os.seteuid(user)
        try:
            yield top
        finally:
            os.seteuid(before)


def names(place: Path, meanwhile: tuple[str, Callable[[], object]] = ("", lambda: None), *, ours: bool) -> list[str]:
    """All that is told; something happens while one of them is held."""
    found: list[str] = []
    with contextlib.closing(descend(place, 3000, 100, ours=ours)) as told:
        for held in told:
            found.append(held.name)
            if held.name == meanwhile[0]:
                meanwhile[1]()
    return found


@pytest.mark.parametrize("mode", [0, 0o400, 0o100])
@pytest.mark.parametrize("closed", ["a", "a/b", "e"])
def test_a_closed_folder_is_told_and_keeps_nothing_else_out(place: Path, closed: str, mode: int) -> None:
    (place / closed).chmod(mode)
    assert names(place, ours=False) == [name for name in EVERYTHING if not name.startswith(f"{closed}/")]
    assert (place / closed).stat().st_mode & 0o777 == mode
    assert names(place, ours=True) == EVERYTHING


@pytest.mark.parametrize(
    ("when", "closed", "lost"),
    [("a/b", "a", ["a/d", "a/b/one", "a/d/two"]), ("a/b/one", "a/b", []), ("a/b/one", "a", ["a/d/two"])],
)
def test_a_folder_that_is_closed_meanwhile_keeps_nothing_else_out(
    place: Path, when: str, closed: str, lost: list[str]
) -> None:
    found = names(place, (when, lambda: (place / closed).chmod(0)), ours=False)
    assert found == [name for name in EVERYTHING if name not in lost]


def test_a_closed_top_is_not_taken_for_an_empty_one_and_is_named(place: Path) -> None:
    place.chmod(0)
    with pytest.raises(PermissionError) as refused:
        names(place, ours=False)
    assert refused.value.filename == str(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
@pytest.mark.parametrize("mode", [0o700, 0])
def test_a_folder_of_another_users_is_passed_by_while_it_is_worked_in_and_named_at_the_end(
    place: Path, mode: int
) -> None:
    user = os.geteuid()
    os.seteuid(0)
    os.chown(place / "a/b", 65533, -1)
    (place / "a/b").chmod(mode)
    os.seteuid(user)
    assert names(place, ours=False) == [name for name in EVERYTHING if name != "a/b/one"]
    with pytest.raises(PermissionError) as refused:
        names(place, ours=True)
    assert refused.value.filename == "a/b"


def test_a_closed_file_is_named(place: Path) -> None:
    (place / "a/b/one").chmod(0)
    with contextlib.closing(descend(place, 3000, 100, ours=False)) as told:
        held = next(held for held in told if held.name == "a/b/one")
        with pytest.raises(PermissionError, match="'a/b/one'"):
            held.read(4)
