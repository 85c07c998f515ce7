"""Position lives with state; a snapshot is a cache."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from bus.consumers import Projection, SequenceGap, SnapshotFile
from bus.log import Stored
from schemas.envelope import Event
from schemas.runs import TimerFired
from tests.bus.conftest import HERE, said

State = dict[str, int]
SHAPE: TypeAdapter[State] = TypeAdapter(State)


def _count(state: State, sequence: int, event: Event) -> State:
    assert isinstance(event, TimerFired)
    return {**state, event.timer: sequence}


def _stored(sequence: int) -> Stored:
    return Stored(sequence, HERE, said(TimerFired(timer=f"t{sequence}")))


def _projection(path: Path, every: int = 1000) -> "Projection[State]":
    return Projection({}, _count, SnapshotFile(path, SHAPE, "r"), every)


def test_a_projection_starts_where_it_was_saved(tmp_path: Path) -> None:
    first = _projection(tmp_path / "s.json", every=2)
    for sequence in (1, 2, 3):
        first.feed(_stored(sequence))
    second = _projection(tmp_path / "s.json")
    assert (second.sequence, second.state) == (2, {"t1": 1, "t2": 2})
    second.feed(_stored(3))
    assert second.state == first.state


def test_what_was_folded_is_not_folded_again(tmp_path: Path) -> None:
    projection = _projection(tmp_path / "s.json")
    assert projection.feed(_stored(1)) is True
    assert projection.feed(_stored(1)) is False
    assert projection.sequence == 1


def test_a_gap_is_refused(tmp_path: Path) -> None:
    projection = _projection(tmp_path / "s.json")
    with pytest.raises(SequenceGap, match="expected 1"):
        projection.feed(_stored(2))


def test_what_no_model_accepts_is_stepped_over(tmp_path: Path) -> None:
    projection = _projection(tmp_path / "s.json")
    projection.feed(Stored(1, HERE, None, "why"))
    projection.feed(_stored(2))
    assert (projection.sequence, projection.state) == (2, {"t2": 2})


@pytest.mark.parametrize("damage", [b"", b"{", b'{"sequence":1}', b'{"code":"x","sequence":1,"state":"{}"}', b"[]"])
def test_a_damaged_snapshot_is_no_snapshot(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "s.json").write_bytes(damage)
    assert _projection(tmp_path / "s.json").sequence == 0


def test_a_snapshot_of_another_shape_or_meaning_is_no_snapshot(tmp_path: Path) -> None:
    SnapshotFile(tmp_path / "s.json", SHAPE, "r").save({"a": 1}, 7)
    assert SnapshotFile(tmp_path / "s.json", SHAPE, "r").load() == ({"a": 1}, 7)
    assert SnapshotFile(tmp_path / "s.json", SHAPE, "other").load() is None
    assert SnapshotFile(tmp_path / "s.json", TypeAdapter(dict[str, str]), "r").load() is None


def test_saving_leaves_one_file_and_deleting_none(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "deep" / "s.json", SHAPE, "r")
    file.save({"a": 1}, 1)
    file.save({"a": 2}, 2)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["s.json"]
    file.delete()
    file.delete()
    assert file.load() is None
