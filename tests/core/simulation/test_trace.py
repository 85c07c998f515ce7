"""A recorded run told again: what its log says about durations, and the same executions under other settings."""

import random
from dataclasses import replace

import pytest

from gyre.core.simulation.setting import Setting, Timings
from gyre.core.simulation.trace import Replayed, fit_relief
from gyre.core.simulation.trace_fold import trace
from gyre.core.simulation.workload import Durations, Sampled
from gyre.core.simulation.world import simulate
from schemas.dispatch import ExecutionTerminated, GroupDispatched
from schemas.envelope import Event
from schemas.roles import CellLost, CellRole, RoleTransitionCompleted, RoleTransitionFailed, RoleTransitionRequested
from schemas.training import MicroStepCompleted, Passage
from tests.core.simulation.small import Fixed, plan, told
from tests.core.told import dispatched
from tests.core.world import launched, registered

TIMINGS = Timings(
    to_train=0.7, to_rollout=0.4, update=1.5, publication=0.3, launch=0.2, admission=0.1, claim=0.05, commit=0.01
)


def sampled(setting: Setting, seed: int) -> Sampled:
    return Sampled(Durations(20.0, 0.5, 0.5), 8.0, setting.plan.groups, 4, random.Random(seed))


def test_a_trace_holds_what_each_duration_was() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, timings=TIMINGS)
    _, log = told(setting, sampled(setting, 1))
    found = trace(log.pairs)
    assert found.groups == 24
    assert len(found.executions) == 72
    measured = found.timings(until=found.updates[-1])
    assert measured.to_train == pytest.approx(0.7)
    assert measured.to_rollout == pytest.approx(0.4)
    assert measured.update == pytest.approx(1.5)
    assert measured.publication == pytest.approx(0.3)
    assert measured.launch == pytest.approx(0.2)
    assert measured.claim == pytest.approx(0.05)
    assert measured.commit == pytest.approx(0.01)
    assert found.step_cost(found.updates[-1]) == (0.0, pytest.approx(0.5))


def test_a_micro_step_in_a_pipeline_takes_what_its_completion_says() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, timings=TIMINGS)
    _, log = told(setting, sampled(setting, 1))
    passage = Passage(startups=1, drains=1, pauses=0, rows=1)

    def filled(event: Event) -> Event:
        is_completion = isinstance(event, MicroStepCompleted)
        return event.model_copy(update={"passage": passage, "seconds": 0.2}) if is_completion else event

    found = trace([(seconds, filled(event)) for seconds, event in log.pairs])
    assert found.step_cost(found.updates[-1]) == (0.0, pytest.approx(0.2))


def test_the_late_loss_of_a_process_that_was_replaced_takes_no_places() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, timings=TIMINGS)
    _, log = told(setting, sampled(setting, 1))
    late = CellLost(cell=0, instance="former", reason="silent")
    doubled = [pair for seconds, event in log.pairs for pair in ((seconds, event), (seconds, late))]
    assert trace(doubled) == trace(log.pairs)


def test_what_happened_after_the_calibrated_part_is_not_looked_at() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, timings=TIMINGS)
    _, log = told(setting, sampled(setting, 1))
    cut = trace(log.pairs).updates[1]
    slower = [(seconds if seconds <= cut else cut + 10 * (seconds - cut), event) for seconds, event in log.pairs]
    assert trace(slower).timings(cut).update == pytest.approx(1.5)
    assert trace(slower).step_cost(cut) == (0.0, pytest.approx(0.5))


def test_of_what_had_not_happened_in_the_calibrated_part_nothing_is_known() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, timings=TIMINGS)
    _, log = told(setting, sampled(setting, 1))
    found = trace(log.pairs)
    before = found.updates[0] - 1.6
    assert {"update", "publication", "to_rollout"} <= set(found.unseen(before))
    assert (found.timings(before).update, found.timings(before).to_train) == (0.0, pytest.approx(0.7))
    assert found.unseen(found.updates[-1]) == ()


@pytest.mark.parametrize("relief", [0.0, 0.4])
@pytest.mark.parametrize("seed", [1, 2])
def test_told_again_under_its_own_settings_its_steps_take_as_long(seed: int, relief: float) -> None:
    setting = Setting(plan(steps=9, groups=4, executions=6), capacity=16, relief=relief, timings=TIMINGS)
    outcome, log = told(setting, sampled(setting, seed))
    found = trace(log.pairs)
    until = found.updates[2]
    again = simulate(replace(setting, timings=found.timings(until)), Replayed(found, relief, until))
    recorded = outcome.updates[-1] - outcome.updates[2]
    assert again.updates[-1] - again.updates[2] == pytest.approx(recorded, rel=0.05)


def test_under_other_settings_the_same_executions_run() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, timings=TIMINGS)
    _, log = told(setting, sampled(setting, 1))
    retold = replace(setting, plan=replace(setting.plan, phi=1.5, mu=1, cells=3))
    _, other = told(retold, Replayed(trace(log.pairs), relief=0.0))
    lengths = [{event.execution: event.seconds for _, event in each.of(ExecutionTerminated)} for each in (log, other)]
    assert lengths[1] == pytest.approx(lengths[0])


def test_a_longer_run_goes_over_the_recorded_groups_again_and_larger_groups_take_mean_executions() -> None:
    setting = Setting(plan(steps=2, groups=2, executions=2, phi=0.0, mu=1), capacity=8)
    _, log = told(setting, Fixed((5.0, 7.0), training=2.0))
    work = Replayed(trace(log.pairs), relief=0.0)
    assert [job.work for job in work.jobs(5, "a", 3)] == pytest.approx([5.0, 7.0, 6.0])
    assert work.micro_steps(5) == pytest.approx((2.0,))


def test_an_execution_on_engines_half_empty_has_more_work_than_seconds() -> None:
    """Alone on two places it took 8 s; on a full engine, at relief 0.4, it would take 8 / 0.8."""
    setting = Setting(plan(steps=1, groups=1, executions=1, phi=0.0, mu=1, cells=1), capacity=2, relief=0.4)
    _, log = told(setting, Fixed((10.0,)))
    assert [job.work for job in Replayed(trace(log.pairs), relief=0.4).jobs(0, "a", 1)] == pytest.approx([10.0])
    assert [job.work for job in Replayed(trace(log.pairs), relief=0.0).jobs(0, "a", 1)] == pytest.approx([8.0])


def test_relief_is_read_off_how_calls_slow_down_with_load() -> None:
    assert fit_relief([(load / 10, 3.0 * (1 - 0.4 * (1 - load / 10))) for load in range(11)]) == pytest.approx(0.4)
    assert fit_relief([(0.5, 2.0)] * 3) == 0.0
    assert fit_relief([]) == 0.0
    assert fit_relief([(0.0, 3.0), (1.0, 2.0)]) == 0.0


def moving(to: CellRole, transition: str = "t1", instance: str = "i0") -> RoleTransitionRequested:
    return RoleTransitionRequested(transition=transition, cell=0, instance=instance, to=to)


def rolled_back(transition: str = "t1", instance: str = "i0") -> RoleTransitionFailed:
    return RoleTransitionFailed(transition=transition, cell=0, instance=instance, phase="restore", reason="no room")


def loads(*said: Event) -> list[float]:
    """After each of these, of two cells of 4 places with one execution running."""
    group = GroupDispatched(group="g", index=0, task="a", version=0, executions=1)
    before = [registered(0, "i0"), registered(1, "i1"), group, dispatched("x"), launched("x")]
    found = trace((float(at), event) for at, event in enumerate((*before, *said)))
    return [load for at, load in found.loads if at >= len(before)]


def test_a_cell_whose_move_to_training_was_rolled_back_serves_again() -> None:
    assert loads(moving("train"), rolled_back()) == [1 / 4, 1 / 8]


def test_a_cell_whose_return_was_rolled_back_trains_still() -> None:
    done = RoleTransitionCompleted(transition="t1", cell=0, instance="i0", to="train", version=0)
    said = [moving("train"), done, moving("rollout", "t2"), rolled_back("t2")]
    assert loads(*said) == [1 / 4, 1 / 4, 1 / 4, 1 / 4]


def test_a_cell_that_was_lost_on_its_way_serves_no_more_when_its_move_is_rolled_back() -> None:
    assert loads(moving("train"), CellLost(cell=0, instance="i0", reason="silent"), rolled_back()) == [1 / 4, 1 / 4]


def test_how_long_a_transition_took_is_not_read_off_one_that_was_rolled_back() -> None:
    done = RoleTransitionCompleted(transition="t2", cell=0, instance="i0", to="train", version=0)
    said = [registered(0, "i0"), moving("train"), rolled_back(), moving("train", "t2"), done]
    found = trace((float(at), event) for at, event in enumerate(said))
    assert found.measured["to_train"] == ((4.0, 1.0),)
