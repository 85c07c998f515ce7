"""Where two runs that were to do the same first part."""

from gyre.core.causes import EventId
from gyre.core.divergence import Parting, Telling, first_decisions, first_fact
from schemas.dispatch import LaunchGranted
from schemas.envelope import Event
from tests.core.facts import admitted, group_ready, stepped
from tests.core.world import launched, rewarded, terminated

Said = tuple[str, Event]
COMMON: tuple[Said, ...] = (
    ("scheduler", LaunchGranted(execution="x0-0")),
    ("scheduler", LaunchGranted(execution="x0-1")),
    ("runner", launched("x0-0")),
    ("runner", terminated("x0-0")),
    ("evaluator", rewarded("x0-0")),
    ("admission", group_ready(0, 2)),
)


def telling(*said: Said) -> Telling:
    made = Telling()
    for sequence, (service, event) in enumerate(said, start=1):
        made.add(sequence, service, (event,))
    return made


def test_the_same_facts_in_another_order_part_only_where_decisions_have_an_order() -> None:
    one, other = telling(*COMMON), telling(COMMON[1], COMMON[0], *reversed(COMMON[2:]))
    assert first_fact(one, other) is None
    (parting,) = first_decisions(one, other)
    assert parting == Parting(
        "scheduler decision 1",
        EventId(1),
        EventId(1),
        "LaunchGranted execution x0-0",
        "LaunchGranted execution x0-1",
    )


def test_the_first_fact_that_is_told_otherwise_is_named_with_what_both_say() -> None:
    worse = rewarded("x0-0").model_copy(update={"reward": 0.25})
    other = telling(*COMMON[:4], ("evaluator", worse), *COMMON[5:])
    found = first_fact(telling(*COMMON), other)
    value = rewarded("x0-0").reward
    assert found == Parting("RewardAssigned x0-0", EventId(5), EventId(5), f"reward={value}", "reward=0.25")


def test_a_fact_that_one_log_lacks_is_named_from_either_side() -> None:
    more = (*COMMON, ("cell", stepped(1)))
    here, there = first_fact(telling(*more), telling(*COMMON)), first_fact(telling(*COMMON), telling(*more))
    assert here is not None
    assert there is not None
    assert (here.of, here.here, here.there) == ("OptimizerStepped 1", EventId(7), None)
    assert (there.of, there.here, there.there) == ("OptimizerStepped 1", None, EventId(7))


def test_sums_in_another_order_are_the_same_fact() -> None:
    near = stepped(1).model_copy(update={"gradient_norm": 1.0 + 1e-7})
    far = stepped(1).model_copy(update={"gradient_norm": 1.01})
    assert first_fact(telling(("cell", stepped(1))), telling(("cell", near))) is None
    assert first_fact(telling(("cell", stepped(1))), telling(("cell", far))) is not None


def test_other_tokens_are_another_fact() -> None:
    one = admitted(0, 0, (3,))
    changed = one.trajectories[0].model_copy(update={"ids": bytes(12)})
    other = one.model_copy(update={"trajectories": (changed,)})
    found = first_fact(telling(("admission", one)), telling(("admission", other)))
    assert found is not None
    assert found.here_says.startswith("tokens=")


def test_one_that_decided_more_parts_where_the_other_ends() -> None:
    (parting,) = first_decisions(telling(*COMMON[:2]), telling(COMMON[0]))
    assert (parting.of, parting.here, parting.there) == ("scheduler decision 2", EventId(2), None)
    assert first_decisions(telling(*COMMON), telling(*COMMON)) == ()
