"""What a log says of its control plane."""

from gyre.core.delays import Delays
from schemas.dispatch import LaunchGranted
from schemas.envelope import Event
from schemas.roles import RoleTransitionCompleted, RoleTransitionRequested
from tests.core import facts, world

MOVE = RoleTransitionRequested(transition="t1", cell=0, instance="a", to="train")
MOVED = RoleTransitionCompleted(transition="t1", cell=0, instance="a", to="train", version=0)


def found(*pairs: tuple[float, Event]) -> dict[str, list[float]]:
    delays = Delays()
    for seconds, event in pairs:
        delays.add(seconds, event)
    return {kind: [each["count"], each["p50"], each["p95"]] for kind, each in delays.summary().items()}


def test_a_launch_and_a_move_count_from_their_decision() -> None:
    assert found(
        (1.0, LaunchGranted(execution="x0-0")),
        (1.5, MOVE),
        (2.0, world.launched("x0-0")),
        (2.5, MOVED),
        (2.5, world.launched("x0-0")),
    ) == {"launch": [1, 1.0, 1.0], "to train": [1, 1.0, 1.0]}


def test_a_group_counts_from_the_end_of_its_last_execution() -> None:
    assert found((1.0, world.terminated("x0-0")), (4.0, world.terminated("x0-1")), (4.25, world.ready("g"))) == {
        "score, build, admit": [1, 0.25, 0.25]
    }


def test_a_claim_counts_from_when_work_and_a_free_cell_were_there() -> None:
    assert found(
        (1.0, facts.joined(1, 0, "a")),
        (2.0, facts.enqueued(1, 0)),
        (2.0, facts.enqueued(1, 1)),
        (2.5, facts.claimed(1, 0, 0, "a")),
        (10.0, facts.completed(1, 0, 0, "a", 4)),
        (10.25, facts.claimed(1, 1, 0, "a")),
    ) == {"claim": [2, 0.375, 0.4875]}


def test_an_update_counts_from_the_last_micro_step_and_a_publication_from_the_update() -> None:
    assert found(
        (1.0, facts.completed(1, 0, 0, "a", 4)),
        (2.0, facts.completed(1, 1, 1, "b", 5)),
        (2.75, facts.stepped(1)),
        (3.0, world.published(1)),
    ) == {"reduce, update": [1, 0.75, 0.75], "publish": [1, 0.25, 0.25]}
