"""Where calls may go is what EV says: tokens open and close, cells come, train, return and are lost."""

from collections import Counter

import hypothesis
from hypothesis import strategies as st

from gyre.core.routes import LEFT, LOST, Routes, choose, evolve, moves, vacated
from schemas.calls import RecordsSealed, RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted

DIGEST = "a" * 64
DISPATCHED = ExecutionDispatched(execution="x", group="g", task="t", index=0, version=0, seed=5)
LAUNCHED = ExecutionLaunched(execution="x", group="g", runner="r", token_digest=DIGEST, deadline_seconds=1.0)
TERMINATED = ExecutionTerminated(
    execution="x", group="g", task="t", reason="failed", stage="agent", exit_code=1, seconds=1.0, state=None
)
SEALED = RecordsSealed(execution="x", last_sequence=0, count=0, digest=DIGEST)


def given(*events: Event) -> Routes:
    routes = Routes()
    for event in events:
        routes = evolve(routes, event)
    return routes


def cell(index: int, instance: str = "", capacity: int = 4) -> CellRegistered:
    name = instance or f"i{index}"
    return CellRegistered(cell=index, instance=name, url=f"u-{name}", capacity=capacity, version=0)


def to(role: str, index: int = 0, instance: str = "i0") -> RoleTransitionRequested:
    return RoleTransitionRequested.model_validate({"transition": "t", "cell": index, "instance": instance, "to": role})


def at(role: str, index: int = 0, instance: str = "i0") -> RoleTransitionCompleted:
    body = {"transition": "t", "cell": index, "instance": instance, "to": role, "version": 1}
    return RoleTransitionCompleted.model_validate(body)


FAILED = RoleTransitionFailed(transition="t", cell=0, instance="i0", phase="p", reason="r")


def test_a_token_is_open_from_launch_to_termination() -> None:
    assert given(DISPATCHED).open == {}
    assert given(DISPATCHED, LAUNCHED).open == {DIGEST: "x"}
    assert given(DISPATCHED, LAUNCHED, TERMINATED).open == {}


def test_a_terminated_execution_waits_for_its_seal_once_and_is_then_forgotten() -> None:
    assert given(DISPATCHED, LAUNCHED, TERMINATED, TERMINATED).closing == ("x",)
    assert given(DISPATCHED, LAUNCHED, RouteAssigned(execution="x", cell=0), TERMINATED, SEALED) == Routes()


def test_a_route_said_after_the_seal_is_forgotten() -> None:
    assert given(DISPATCHED, LAUNCHED, TERMINATED, SEALED, RouteAssigned(execution="x", cell=0)) == Routes()


def test_an_evaluation_is_open_until_it_is_scored() -> None:
    started = EvaluationStarted(evaluation="e", version=0, episodes=2)
    scored = EvaluationScored(evaluation="e", version=0, scores=b"", mean=0.0, valid=0, seconds=1.0)
    assert given(started).evaluations == {"e": 2}
    assert given(started, RouteAssigned(execution="e-1", cell=0), scored) == Routes()


def test_no_cell_no_choice() -> None:
    assert choose(given(DISPATCHED, LAUNCHED), "x") is None


def test_an_execution_goes_to_the_least_loaded_cell_for_its_capacity_and_sticks() -> None:
    others = [DISPATCHED.model_copy(update={"execution": name}) for name in ("a", "b", "c")]
    routes = given(cell(0, capacity=1), cell(1, capacity=8), DISPATCHED, *others)
    routes = evolve(evolve(routes, RouteAssigned(execution="a", cell=0)), RouteAssigned(execution="b", cell=1))
    assert choose(routes, "x") == 1
    assert choose(routes, "a") == 0
    assert choose(evolve(routes, RouteMoved(execution="a", from_cell=0, to_cell=1, reason="r")), "a") == 1


def test_between_equal_cells_calls_go_to_the_one_that_trains_last() -> None:
    assert choose(given(cell(0), cell(1), cell(2), DISPATCHED), "x") == 2


def on_core(*names: str) -> list[Event]:
    """Executions that run, all of them routed to the core."""
    known: list[Event] = [DISPATCHED.model_copy(update={"execution": name}) for name in names]
    return known + [RouteAssigned(execution=name, cell=0) for name in names]


def test_a_leaving_cells_executions_fill_the_others_in_descending_order() -> None:
    routes = given(cell(0), cell(1), cell(2, capacity=2), *on_core("x", "y", "z"), to("train"))
    assert [(each.execution, each.to_cell, each.reason) for each in moves(routes)] == [
        ("x", 2, LEFT),
        ("y", 2, LEFT),
        ("z", 1, LEFT),
    ]
    assert choose(routes, "x") == 2


def test_standalone_engines_come_first_for_their_indexes_follow_the_cells() -> None:
    cells = [cell(index, capacity=2) for index in range(5)]  # three elastic ones, two that never train
    routes = given(*cells, *on_core(*"abcdef"), to("train"))
    assert [each.to_cell for each in moves(routes)] == [4, 4, 3, 3, 2, 2]


def test_a_route_moves_once_for_each_time_that_its_cell_leaves() -> None:
    routes = given(cell(0), cell(1), cell(2), *on_core("x"), to("train"))
    (moved,) = moves(routes)
    assert moves(evolve(routes, moved)) == ()
    assert moves(evolve(evolve(routes, moved), to("train", 1, "i1"))) == ()
    assert [each.to_cell for each in moves(evolve(evolve(routes, moved), to("train", 2, "i2")))] == [1]


def test_routes_of_a_lost_cell_move_and_say_so() -> None:
    lost = CellLost(cell=0, instance="i0", reason="silent")
    assert [each.reason for each in moves(given(cell(0), cell(1), *on_core("x"), lost))] == [LOST]


def test_without_a_cell_that_serves_nothing_moves() -> None:
    assert moves(given(cell(0), *on_core("x"), to("train"))) == ()


def test_an_execution_that_only_waits_for_its_seal_does_not_move() -> None:
    assert moves(given(cell(0), cell(1), *on_core("x"), LAUNCHED, TERMINATED, to("train"))) == ()


def test_beyond_all_capacity_the_least_loaded_takes_what_is_in_excess() -> None:
    routes = given(cell(0), cell(1, capacity=1), cell(2, capacity=2), *on_core(*"uvwxyz"), to("train"))
    assert [each.to_cell for each in moves(routes)] == [2, 2, 1, 2, 1, 2]


def test_a_cell_is_vacated_once_nothing_that_could_go_elsewhere_points_at_it() -> None:
    routes = given(cell(0), cell(1), *on_core("x"), to("train"))
    assert not vacated(routes, 0)
    assert vacated(evolve(routes, moves(routes)[0]), 0)
    assert vacated(given(cell(0), *on_core("x"), to("train")), 0)


@hypothesis.given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.integers(1, 12), st.data())
def test_a_burst_moves_nothing_that_the_order_does_not_need(
    capacities: list[int], executions: int, data: st.DataObject
) -> None:
    """Cells leave from the core on: a route moves only off one that left, to the last of the others that has room."""
    routes = given(*(cell(index, capacity=size) for index, size in enumerate(capacities)))
    for number in range(executions):
        name, index = f"x{number}", data.draw(st.integers(0, len(capacities) - 1))
        routes = evolve(routes, DISPATCHED.model_copy(update={"execution": name}))
        routes = evolve(routes, RouteAssigned(execution=name, cell=index))
    for leaving in range(len(capacities) - 1):
        routes = evolve(routes, to("train", leaving, f"i{leaving}"))
        before = routes
        for moved in moves(before):
            assert moved.from_cell == leaving
            counts = Counter(routes.assigned.values())
            roomy = [index for index, size in enumerate(capacities) if index > leaving and counts[index] < size]
            assert moved.to_cell == max(roomy, default=moved.to_cell)
            routes = evolve(routes, moved)
        kept = {name: index for name, index in before.assigned.items() if index != leaving}
        assert kept.items() <= routes.assigned.items()
        assert leaving not in routes.assigned.values()


@hypothesis.given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 24))
def test_no_cell_is_overfull_while_another_has_room(capacities: list[int], executions: int) -> None:
    routes = given(*(cell(index, capacity=size) for index, size in enumerate(capacities)))
    for number in range(executions):
        name = f"x{number}"
        routes = evolve(routes, DISPATCHED.model_copy(update={"execution": name}))
        index = choose(routes, name)
        assert index is not None
        routes = evolve(routes, RouteAssigned(execution=name, cell=index))
    counts = Counter(routes.assigned.values())
    over = [counts[index] - size for index, size in enumerate(capacities)]
    assert max(over) <= 0 or min(over) >= 0


def test_a_cell_is_avoided_only_while_there_is_another() -> None:
    routes = given(cell(0), cell(1), DISPATCHED, RouteAssigned(execution="x", cell=0))
    assert choose(routes, "x", {0}) == 1
    assert choose(routes, "x", {0, 1}) == 0


def test_a_cell_takes_no_requests_from_the_request_to_train_until_it_is_back() -> None:
    assert choose(given(cell(0), to("train")), "x") is None
    assert choose(given(cell(0), to("train"), at("train"), to("rollout")), "x") is None
    assert choose(given(cell(0), to("train"), at("train"), to("rollout"), at("rollout")), "x") == 0


def test_a_failed_transition_leaves_the_cell_in_its_former_role() -> None:
    assert choose(given(cell(0), to("train"), FAILED), "x") == 0
    assert choose(given(cell(0), to("train"), at("train"), to("rollout"), FAILED), "x") is None


def test_a_new_instance_serves_whatever_its_predecessor_did() -> None:
    lost = CellLost(cell=0, instance="i0", reason="r")
    for story in ([to("train")], [to("train"), at("train")], [to("train"), at("train"), to("rollout")]):
        assert choose(given(cell(0), *story, cell(0, "new")), "x") == 0
        assert choose(given(cell(0), *story, lost, cell(0, "new")), "x") == 0


def test_a_new_instance_fails_a_transition_of_its_own_and_not_of_its_predecessor() -> None:
    fell = FAILED.model_copy(update={"instance": "new"})
    routes = given(cell(0), to("train"), at("train"), to("rollout"), cell(0, "new"), to("train", instance="new"), fell)
    assert choose(routes, "x") == 0


def test_an_instance_that_registers_again_stays_where_it_is() -> None:
    assert choose(given(cell(0), to("train"), cell(0)), "x") is None


def test_late_words_about_a_replaced_instance_change_nothing() -> None:
    routes = given(cell(0), cell(0, "new"))
    assert evolve(routes, CellLost(cell=0, instance="i0", reason="r")) == routes
    for late in (to("train"), at("train"), to("rollout"), at("rollout"), FAILED):
        assert evolve(routes, late) == routes
    assert choose(evolve(evolve(routes, to("train", instance="new")), at("rollout")), "x") is None
    assert routes.cells[0].url == "u-new"
