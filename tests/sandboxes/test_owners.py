"""Who made a container and whether anybody waits for it; and what is shown in one."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.sandboxes.folders import remove
from gyre.sandboxes.owners import BOX, LOCK, UNTIL, Owner, gone
from gyre.sandboxes.port import Command, SandboxError
from gyre.sandboxes.shown import laid_out, mounted

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)
PATHS = st.builds(lambda parts: Path("/", *parts), NAMES)


def test_what_an_owner_left_is_left_once_it_is_gone(tmp_path: Path) -> None:
    one, other = Owner(), Owner()
    labels = one.labels(tmp_path / "box", 60.0)
    assert labels[BOX] == str(tmp_path / "box")
    assert not other.left(labels, live=False)
    one.close()
    assert other.left(labels, live=False)
    other.close()


def test_an_owner_knows_what_it_still_waits_for(tmp_path: Path) -> None:
    owner = Owner()
    labels = owner.labels(tmp_path / "box", 60.0)
    assert not owner.left(labels, live=True)
    assert owner.left(labels, live=False)
    owner.close()
    assert list(tmp_path.iterdir()) == []


def test_an_owner_is_there_whatever_becomes_of_the_folders_of_its_boxes(tmp_path: Path) -> None:
    """A judge's runs lie in a folder of the judged execution, which is cleared and may be made again."""
    owner, other = Owner(), Owner()
    judged, next_ = tmp_path / "x0-0.eval", tmp_path / "x0-1.eval"
    for folder in (judged, next_):
        folder.mkdir()
    owner.labels(judged / "run-1", 60.0)
    labels = owner.labels(next_ / "run-1", 60.0)
    remove(judged)
    assert not other.left(labels, live=False)
    judged.mkdir()
    assert not other.left(labels, live=False)
    again = owner.labels(judged / "run-1", 60.0)
    assert not other.left(again, live=False)
    assert len(owner._locks) == 2
    owner.close()
    assert other.left(labels, live=False)
    assert other.left(again, live=False)
    assert [path for folder in (judged, next_) for path in folder.iterdir()] == []


def test_a_container_of_a_folder_that_is_not_seen_is_left_when_its_time_is_up(tmp_path: Path) -> None:
    owner = Owner()
    labels = {LOCK: str(tmp_path / "elsewhere/.owner-x"), UNTIL: str(int(time.time()) + 60)}
    assert not gone(Path(labels[LOCK]))
    assert not owner.left(labels, live=False)
    assert owner.left({**labels, UNTIL: str(int(time.time()) - 1)}, live=False)


def test_labels_of_somebody_else_are_no_reason_to_remove_anything() -> None:
    assert not Owner().left({}, live=False)


@given(PATHS, st.lists(PATHS, max_size=5), st.lists(PATHS, max_size=3))
def test_what_is_shown_is_shown_once_and_never_inside_a_box(box: Path, wanted: list[Path], always: list[Path]) -> None:
    shown = mounted(Command(("true",), box, box, {}, 1.0, visible=tuple(wanted)), tuple(always))
    assert all(shown.values())
    others = [box, *shown]
    for path in shown:
        assert path in (*wanted, *always)
        assert not any(path.is_relative_to(each) for each in others if each != path)
    for path in (*wanted, *always):
        assert any(path.is_relative_to(each) for each in others)


def test_what_is_visible_in_a_hidden_folder_stands_by_itself() -> None:
    command = Command(("true",), Path("/home/r/e"), Path("/home/r/e"), {}, 1.0, visible=(Path("/home/r/t"),))
    home, run = Path("/home"), Path("/home/r")
    assert mounted(command, (home,)) == {home: True}
    assert list(mounted(command, (home,), run).items()) == [(home, True), (run, False), (Path("/home/r/t"), True)]
    assert mounted(command, (), run) == {Path("/home/r/t"): True}


def test_a_hidden_folder_is_covered_under_every_name_that_leads_to_it(tmp_path: Path) -> None:
    """A link to a folder above it, a link in it to a folder above it, and itself; what is wanted in it is shown."""
    run, link, back = tmp_path / "data/runs/r", tmp_path / "home/d", tmp_path / "data/runs/r/back"
    (run / "t").mkdir(parents=True)
    link.parent.mkdir()
    link.symlink_to(tmp_path / "data")
    back.symlink_to(tmp_path / "data/runs")
    seen = laid_out((link, link / "runs/r/t", tmp_path / "data", back, run), run)
    assert seen == {
        tmp_path / "data": True,
        run: False,
        link: True,
        link / "runs/r": False,
        back: True,
        back / "r": False,
        link / "runs/r/t": True,
    }
    assert list(laid_out((run / "t", run), run, (tmp_path,)).items()) == [(run, False), (run / "t", True)]
    assert laid_out((tmp_path,), link / "runs/r") == {tmp_path: True, run: False}


def test_a_folder_that_is_not_shown_is_refused() -> None:
    command = Command(("true",), Path("/a"), Path("/b"), {}, 1.0)
    with pytest.raises(SandboxError, match="folder /a: lies neither in /b"):
        mounted(command, ())
    assert mounted(command, (Path("/a"),)) == {Path("/a"): True}
