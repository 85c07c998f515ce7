"""Counters, quotas, the order of tasks, seeds."""

from dataclasses import replace

import pytest

from gyre.core.dispatch import next_launch
from gyre.core.dispatch_state import DISPATCHING, Dispatch, Group
from gyre.core.plan import Plan, execution_name, execution_place, group_name, group_place
from schemas.dispatch import LaunchGranted
from tests.core.world import launched, terminated

PLAN = Plan(
    steps=5,
    groups=4,
    executions=2,
    phi=0.5,
    mu=2,
    rho_min=0.3,
    tau_seconds=0,
    cells=1,
    tasks=tuple("abcdefgh"),
    seed=1,
    order_seed=1,
)


def test_the_quota_is_phi_plus_mu_batches_then_mu_more_a_burst_and_never_above_the_whole_run() -> None:
    assert [PLAN.quota(bursts) for bursts in range(4)] == [10, 18, 20, 20]


def test_the_last_burst_may_be_short() -> None:
    assert PLAN.bursts == 3
    assert [PLAN.burst_last(bursts) for bursts in range(3)] == [2, 4, 5]


def test_the_supply_is_rounded_up_but_not_by_floating_point() -> None:
    assert PLAN.supply_needed == 2
    assert replace(PLAN, groups=100, rho_min=0.55).supply_needed == 55  # 0.55 * 100 = 55.00000000000001
    assert replace(PLAN, groups=1, rho_min=0.01).supply_needed == 1


def test_every_epoch_passes_over_all_tasks_each_in_an_order_of_its_own() -> None:
    epochs = [tuple(PLAN.task(8 * epoch + place) for place in range(8)) for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list("abcdefgh")] * 3
    assert len(set(epochs)) == 3


def test_the_order_of_tasks_depends_on_its_own_seed_alone() -> None:
    def order(plan: Plan) -> list[str]:
        return [plan.task(index) for index in range(8)]

    assert order(replace(PLAN, seed=2)) == order(PLAN) != order(replace(PLAN, order_seed=2))


def test_seeds_of_executions_differ_and_fit_in_31_bits() -> None:
    seeds = {PLAN.execution_seed(f"x{group}-0") for group in range(200)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert PLAN.execution_seed("x0-0") != replace(PLAN, seed=2).execution_seed("x0-0")


def test_what_was_never_dispatched_can_neither_launch_nor_end() -> None:
    empty = Dispatch()
    for event in (launched("x0-0"), terminated("x0-0"), LaunchGranted(execution="x0-0")):
        assert DISPATCHING[type(event)](PLAN, empty, event) == empty


def test_a_place_is_free_only_above_what_runs_and_what_is_about_to() -> None:
    group = Group(queued=0b1100, granted=0b0010, running=0b0001)
    state = Dispatch(groups=1, dispatched=4, launched=1, granted=1, open={0: {0: group}})
    assert next_launch(state, 3) == "x0-2"
    assert next_launch(state, 2) is None
    assert next_launch(state, 0) is None


@pytest.mark.parametrize("name", ["x0-9", "x00-0", "x0-+1", "x-1-0", "x0--1", "x0", "y", "", "x1-0-0"])
def test_a_name_that_no_execution_has_changes_nothing(name: str) -> None:
    state = Dispatch(groups=1, dispatched=2, open={0: {0: Group(queued=0b11)}})
    for event in (launched("x0-0"), terminated("x0-0"), LaunchGranted(execution="x0-0")):
        stranger = event.model_copy(update={"execution": name})
        assert DISPATCHING[type(event)](PLAN, state, stranger) == state


def test_names_of_groups_and_executions_are_read_back() -> None:
    assert group_place(group_name(12)) == 12
    assert group_place("g012") == group_place("12") == -1
    assert execution_place(execution_name(3, 14)) == (3, 14)
