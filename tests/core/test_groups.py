"""When a group is ready and what its executions train, told in events (design §7, Readiness)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gyre.core import groups
from gyre.core.decider import Decider
from gyre.core.groups import Params, State
from gyre.rl.advantages import rule
from schemas.base import pack_floats, pack_ints
from schemas.calls import ModelCallRecorded, RecordsSealed, SamplingRecord, VersionSpan
from schemas.dispatch import ExecutionDispatched, GroupDispatched
from schemas.envelope import Event
from schemas.refs import BlobRef
from schemas.rewards import GroupReady, LeafSummary, Outcome, RewardAssigned, RewardUnresolved, TreeBuilt
from schemas.training import TrajectoriesAdmitted

PARAMS = Params(seed=7, j_max=2)
CALL = ModelCallRecorded(
    execution="x",
    call="c0",
    index=0,
    thread="",
    kind="turn",
    parent=None,
    prefix_tokens=0,
    prefix_messages=0,
    input_ids=pack_ints([1, 2]),
    output_ids=pack_ints([3, 4, 5]),
    logprobs=pack_floats([-1, -2, -3]),
    versions=(VersionSpan(version=0, tokens=3),),
    finish="stop",
    sampling=SamplingRecord(temperature=1, top_p=1, top_k=0, max_tokens=9, seed=None),
    messages="[]",
    reply="{}",
    system_digest="0" * 64,
    cells=(0,),
    cached_tokens=0,
    queue_seconds=0,
    engine_seconds=0,
    total_seconds=0,
    delivered=True,
)
BODY = BlobRef(digest="1" * 64, size=1, address="blob:1")


def load(body: BlobRef) -> dict[str, ModelCallRecorded]:
    assert body == BODY
    return {"c0": CALL}


ADMISSION: Decider[State] = groups.decider(PARAMS, load, rule("std", shuffle=False))


def dispatched(group: int, executions: int, version: int = 0) -> list[Event]:
    head = GroupDispatched(group=f"g{group}", index=group, task="t", version=version, executions=executions)
    return [head, *(execution(group, place, version) for place in range(executions))]


def execution(group: int, place: int, version: int = 0) -> ExecutionDispatched:
    name = f"x{group}-{place}"
    return ExecutionDispatched(execution=name, group=f"g{group}", task="t", index=place, version=version, seed=0)


def closed(name: str, body: BlobRef | None = BODY) -> list[Event]:
    leaves = (LeafSummary(leaf="c0", role="main", tokens=5, targets=3),) if body else ()
    return [
        RecordsSealed(execution=name, last_sequence=1, count=1, digest="0" * 64),
        TreeBuilt(execution=name, digest="0" * 64, nodes=len(leaves), leaves=leaves, body=body),
    ]


def scored(name: str, reward: float, *, placeholder: bool = False) -> RewardAssigned:
    return RewardAssigned(execution=name, group=name[1:].replace("-", "g"), reward=reward, placeholder=placeholder)


def unresolved(name: str) -> RewardUnresolved:
    return RewardUnresolved(execution=name, group="g", attempts=3, reason="evaluator failed")


def admissions(events: tuple[Event, ...]) -> list[TrajectoriesAdmitted]:
    return [event for event in events if isinstance(event, TrajectoriesAdmitted)]


def finished(group: int, *rewards: float) -> list[Event]:
    names = [f"x{group}-{place}" for place in range(len(rewards))]
    facts = [[*closed(name), scored(name, reward)] for name, reward in zip(names, rewards, strict=True)]
    return [*dispatched(group, len(rewards)), *(fact for each in facts for fact in each)]


def test_the_last_score_makes_the_group_ready() -> None:
    story = ADMISSION.given(*dispatched(0, 2, version=3), *closed("x0-0"), *closed("x0-1"), scored("x0-0", 1.0))
    assert story.said() == ()
    assert story.when(scored("x0-1", 0.0)).due() == (
        GroupReady(
            group="g0",
            index=0,
            version=3,
            outcomes=(
                Outcome(execution="x0-0", standing="valid", reward=1.0),
                Outcome(execution="x0-1", standing="valid", reward=0.0),
            ),
        ),
    )


@pytest.mark.parametrize("missing", ["RecordsSealed", "TreeBuilt", "RewardAssigned"])
def test_a_group_waits_for_each_of_seal_tree_and_score(missing: str) -> None:
    events = finished(0, 1.0, 0.0)
    place = max(index for index, event in enumerate(events) if event.type == missing)
    held = events.pop(place)
    story = ADMISSION.given(*events)
    assert story.said() == ()
    assert [event.type for event in story.when(held).due()] == ["GroupReady"]


def test_a_group_waits_for_executions_that_are_not_dispatched_yet() -> None:
    head, first, _ = dispatched(0, 2)
    assert ADMISSION.given(head, first, *closed("x0-0"), scored("x0-0", 1.0)).said() == ()


def test_each_execution_of_a_ready_group_is_admitted_once_with_its_advantage() -> None:
    said = ADMISSION.given(*finished(0, 1.0, 0.0)).said()
    assert [event.type for event in said] == ["GroupReady", "TrajectoriesAdmitted", "TrajectoriesAdmitted"]
    first, second = admissions(said)
    assert (first.execution, first.advantage, first.targets) == ("x0-0", 1.0, 3)
    assert (second.execution, second.advantage, second.targets) == ("x0-1", -1.0, 3)
    assert first.trajectories[0].target == bytes([0, 0, 1, 1, 1])
    assert first.seed != second.seed


def test_nothing_is_said_twice() -> None:
    events = finished(0, 1.0, 0.0)
    settled = ADMISSION.given(*events).settle()
    assert settled.said() == ()
    assert settled.when(*events[2:]).said() == ()
    assert settled.when(*(event for _, event in settled.log)).said() == ()


def test_the_excluded_are_admitted_empty_and_their_peers_are_measured_without_them() -> None:
    events = [event for event in finished(0, 1.0, 0.0, 0.5) if event != scored("x0-2", 0.5)]
    said = ADMISSION.given(*events, unresolved("x0-2")).said()
    assert [each.advantage for each in admissions(said)] == [1.0, -1.0, 0.0]
    assert [each.targets for each in admissions(said)] == [3, 3, 0]


def test_a_placeholder_counts_in_the_statistics_and_trains_nothing() -> None:
    events = [*dispatched(0, 2), *closed("x0-0"), *closed("x0-1", None), scored("x0-0", 1.0)]
    said = ADMISSION.given(*events, scored("x0-1", 0.0, placeholder=True)).said()
    assert [each.advantage for each in admissions(said)] == [1.0, -1.0]
    assert [each.targets for each in admissions(said)] == [3, 0]


def test_a_group_without_spread_is_admitted_at_advantage_zero() -> None:
    said = ADMISSION.given(*finished(0, 0.5, 0.5)).said()
    assert [(each.advantage, each.targets) for each in admissions(said)] == [(0.0, 3), (0.0, 3)]


def test_a_scored_execution_that_made_no_call_has_no_trajectory() -> None:
    events = [*dispatched(0, 1), *closed("x0-0", None), scored("x0-0", 1.0)]
    (only,) = admissions(ADMISSION.given(*events).said())
    assert (only.trajectories, only.targets) == ((), 0)


def test_the_first_reward_stands() -> None:
    said = ADMISSION.given(*finished(0, 1.0, 0.0)[:-1], scored("x0-0", 0.25), scored("x0-1", 0.0)).said()
    assert isinstance(said[0], GroupReady)
    assert [each.reward for each in said[0].outcomes] == [1.0, 0.0]


def test_a_half_admitted_group_is_finished_before_another_is_ready() -> None:
    story = ADMISSION.given(*finished(0, 1.0, 0.0))
    story = story.when(*story.due()).when(*finished(1, 1.0, 0.0))
    groups_said = [getattr(event, "group", "") for event in story.said()]
    assert groups_said == ["g0", "g0", "g1", "g1", "g1"]


def test_groups_are_ready_in_the_order_in_which_they_were_completed() -> None:
    said = ADMISSION.given(*finished(1, 1.0, 0.0), *finished(0, 1.0, 0.0)).said()
    assert [event.group for event in said if isinstance(event, GroupReady)] == ["g1", "g0"]


def test_finished_groups_are_forgotten() -> None:
    state = ADMISSION.given(*finished(0, 1.0, 0.0)).settle().state
    assert (state.groups, state.group_of) == ({}, {})


def test_what_is_due_names_the_tree_that_the_shell_has_to_load() -> None:
    story = ADMISSION.given(*finished(0, 1.0, 0.0))
    story = story.when(*story.due())
    first, second = groups.due(story.state)
    assert [first.body, second.body] == [BODY, BODY]
    decision = groups.admit(PARAMS, first, load(BODY), rule("std", shuffle=False))
    assert decision.events == story.due()
    assert decision.subject == ("execution", "x0-0")


def test_shuffled_advantages_are_the_groups_own() -> None:
    shuffling = groups.decider(PARAMS, load, rule("std", shuffle=True))
    said = admissions(shuffling.given(*finished(0, 1.0, 0.0, 0.0, 0.0)).said())
    plain = admissions(ADMISSION.given(*finished(0, 1.0, 0.0, 0.0, 0.0)).said())
    assert sorted(each.advantage for each in said) == sorted(each.advantage for each in plain)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="j_max = 0: give at least 1"):
        groups.initial(Params(seed=0, j_max=0))


@given(st.permutations(finished(0, 1.0, 0.0, 0.5)[4:]), st.integers(0, 12))
def test_any_order_of_facts_and_any_restart_admit_the_same(order: list[Event], stop: int) -> None:
    adapter = TypeAdapter(State)
    story = ADMISSION.given(*dispatched(0, 3))
    for place, event in enumerate(order):
        story = story.when(event).settle()
        if place == stop:
            restored = adapter.validate_json(adapter.dump_json(story.state))
            assert restored == story.state
    said = admissions(tuple(event for _, event in story.log))
    assert said == admissions(ADMISSION.given(*finished(0, 1.0, 0.0, 0.5)).said())


def _with_a_surplus(*facts: Event) -> list[Event]:
    """g0 with N = 2 and a surplus of two."""
    head, *members = dispatched(0, 4)
    assert isinstance(head, GroupDispatched)
    return [head.model_copy(update={"executions": 2, "surplus": 2}), *members, *facts]


def _outcomes(events: tuple[Event, ...]) -> list[tuple[str, str, float | None]]:
    ready = next(event for event in events if isinstance(event, GroupReady))
    return [(each.execution, each.standing, each.reward) for each in ready.outcomes]


def test_a_group_with_a_surplus_closes_at_n_valid_scores_and_trains_just_those() -> None:
    one = _with_a_surplus(*closed("x0-2"), scored("x0-2", 1.0))
    assert ADMISSION.given(*one).said() == ()
    said = ADMISSION.given(*one, *closed("x0-1"), scored("x0-1", 0.0)).said()
    assert _outcomes(said) == [("x0-1", "valid", 0.0), ("x0-2", "valid", 1.0)]
    assert [(each.execution, each.advantage) for each in admissions(said)] == [("x0-1", -1.0), ("x0-2", 1.0)]


def test_what_a_surplus_leaves_after_its_group_closed_changes_nothing() -> None:
    facts = [*closed("x0-2"), scored("x0-2", 1.0), *closed("x0-1"), scored("x0-1", 0.0)]
    late = [*closed("x0-0"), scored("x0-0", 0.5), *closed("x0-3"), unresolved("x0-3")]
    story = ADMISSION.given(*_with_a_surplus(*facts))
    ready = story.due()
    early = story.when(*late)  # they came while the group was about to be called ready
    assert early.due() == ready
    assert early.said() == story.said()
    after = story.settle().when(*late)
    assert (after.said(), after.state.groups, after.state.group_of) == ((), {}, {})


def test_a_group_whose_surplus_was_not_enough_closes_with_what_there_is() -> None:
    facts = [*closed("x0-0"), unresolved("x0-0"), *closed("x0-1"), scored("x0-1", 0.0, placeholder=True)]
    facts += [*closed("x0-2"), scored("x0-2", 1.0)]
    assert ADMISSION.given(*_with_a_surplus(*facts)).said() == ()
    said = ADMISSION.given(*_with_a_surplus(*facts, *closed("x0-3"), unresolved("x0-3"))).said()
    assert _outcomes(said) == [("x0-1", "placeholder", 0.0), ("x0-2", "valid", 1.0)]
