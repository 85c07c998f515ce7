"""Scenes of executions, scores and calls: for each finding one in which it speaks and one, much alike, in which not."""

from typing import Any

from schemas.calls import DeliveryCorrected, HistoryRejected, VersionSpan
from schemas.envelope import Event
from schemas.runs import OfficeTaken
from schemas.training import GroupAssigned, WeightsPublished
from tests.core.diagnosis.scene import (
    Scene,
    Told,
    assessed,
    at,
    built,
    call,
    dispatched,
    each,
    ended,
    granted,
    launched,
    ready,
    rewarded,
    scored_group,
    sealed,
    unresolved,
)
from tests.core.world import WEIGHTS, run_started, stepped

MIXED, ZEROS = (0.0, 1.0, 0.3, 1.0), (0.0,) * 4
Pair = tuple[Scene, Scene]
"""(speaks, stays silent)"""


def running(seconds: float) -> Scene:
    """x0-0 runs since second 2, with 100 s to go at first and a call at second 3; `seconds` have passed since."""
    told = at(0, run_started(), *dispatched(0)) + at(1, granted("x0-0")) + at(2, launched("x0-0"))
    return Scene(told + at(3, call("x0-0")), after=seconds)


def stuck() -> Pair:
    """A deadline of 100 s, 2 s to be killed and 15 s in which nobody is thought dead: 117 s."""
    return running(118), running(116)


def unlaunched() -> Pair:
    told = at(0, run_started(), *dispatched(0)) + at(1, granted("x0-0"))
    return Scene(told, after=16), Scene(told + at(2, launched("x0-0")), after=16)


def hanging() -> Pair:
    return running(51), running(49)


def nearly_over() -> Pair:
    """In the last tenth of 100 s; one that runs since long has ended in an archive."""
    return running(92), running(85)


def last_attempt() -> Pair:
    told = at(0, run_started(), *dispatched(0), launched("x0-0"), ended("x0-0"), assessed("x0-0", None, 1, "crash"))
    once_more = at(1, assessed("x0-0", None, 2, "crash"))
    return Scene(told + once_more, after=1), Scene(told + once_more + at(2, rewarded("x0-0", 1.0)), after=1)


def closed_group(*lacking: str) -> Told:
    """A group of which everything is said but what is named, about its last execution."""
    told = at(0, run_started(), *dispatched(0))
    for place in range(4):
        name = f"x0-{place}"
        rest: dict[str, Event] = {"seal": sealed(name), "tree": built(name), "score": rewarded(name, 1.0)}
        told += at(1, launched(name), ended(name), *(rest[key] for key in rest if place < 3 or key not in lacking))
    return told


def unsealed() -> Pair:
    return Scene(closed_group("seal", "tree"), after=16), Scene(closed_group("seal", "tree"), after=14)


def treeless() -> Pair:
    return Scene(closed_group("tree"), after=16), Scene(closed_group("tree"), after=14)


def unscored() -> Pair:
    """300 s of budget and pauses, and 15 s of silence."""
    return Scene(closed_group("score"), after=316), Scene(closed_group("score"), after=314)


def lost_on_the_way() -> Pair:
    """Others are scored all the while: a queue may be long while it moves, but not ten times the limit."""
    told = closed_group("score")
    busy = [told + at(seconds, launched("x9-0"), ended("x9-0"), assessed("x9-0", 1.0)) for seconds in (3152.0, 3140.0)]
    return Scene(busy[0], after=0), Scene(busy[1], after=0)


def undecided() -> Pair:
    """All is there, and admission is silent."""
    return Scene(closed_group(), after=16), Scene(closed_group() + at(2, ready(0, (1.0,) * 4)), after=600)


def half_dispatched() -> Pair:
    whole = dispatched(0)
    return Scene(at(0, run_started(), *whole[:-1]), after=16), Scene(at(0, run_started(), *whole), after=16)


def outage() -> Pair:
    """Four executions in a row without a score; one valid score among eight."""
    crashes = [assessed(f"x0-{place}", None, 1, "exit 7") for place in range(4)]
    broken = [*crashes[:3], assessed("x1-0", 1.0), crashes[3], *(assessed(f"x1-{place}", None) for place in (1, 2))]
    return Scene(each(0, 1, crashes)), Scene(each(0, 1, broken))


def mostly_unresolved() -> Pair:
    """Five of a batch of eight are left out; four of eight."""

    def told(bad: int) -> Told:
        names = [f"x{place % 5}-{place // 5}" for place in range(8)]
        settled = [unresolved(name) if place < bad else rewarded(name, 1.0) for place, name in enumerate(names)]
        return each(0, 1, [*(ended(name) for name in names), *settled])

    return Scene(told(5)), Scene(told(4))


def one_bad_task() -> Pair:
    """All four executions of t0 without a score, while t1 has one; but once t0 was scored."""
    told: list[Event] = [ended(f"x{group}-{place}") for group in range(2) for place in range(4)]
    told += [rewarded("x1-0", 1.0), *(unresolved(f"x0-{place}") for place in range(4))]
    once: list[Event] = [ended("x0-9"), rewarded("x0-9", 1.0)]
    return Scene(each(0, 1, told)), Scene(each(0, 1, [*once, *told]))


def flat_batch() -> Pair:
    """Both groups of a batch without a spread, one of them but for rounding; one of them with a spread."""

    def told(*groups: tuple[float, ...]) -> Told:
        events = [event for place, rewards in enumerate(groups) for event in scored_group(place, rewards)]
        taken = [GroupAssigned(step=1, group=f"g{place}", version=0, staleness=0) for place in range(2)]
        return each(0, 1, [*events, *taken, stepped(1)])

    return Scene(told(ZEROS, (0.3, 0.3, 0.3, 0.1 + 0.2))), Scene(told(ZEROS, MIXED))


def cliff() -> Pair:
    """Ten groups with a spread, then six of zeros: by chance once in 10^8. After as many zeros as others: not."""

    def told(before: tuple[tuple[float, ...], ...]) -> Told:
        groups = [*before, *[ZEROS] * 6]
        events = [scored_group(place, rewards, version=place // 4) for place, rewards in enumerate(groups)]
        return each(0, 1, [event for group in events for event in group])

    return Scene(told((MIXED,) * 10)), Scene(told((MIXED, ZEROS) * 5))


def failing_harness() -> Pair:
    def told(failed: int) -> Told:
        reasons = ["failed"] * failed + ["completed"] * (8 - failed)
        return each(0, 1, [ended(f"x{n}-0", reason, detail="no agent") for n, reason in enumerate(reasons)])  # type: ignore[arg-type]

    return Scene(told(5)), Scene(told(4))


def slow_harness() -> Pair:
    def told(late: int) -> Told:
        reasons = ["timeout"] * late + ["cancelled"] * 4 + ["completed"] * (8 - late)
        return each(0, 1, [ended(f"x{n}-0", reason) for n, reason in enumerate(reasons)])  # type: ignore[arg-type]

    return Scene(told(5)), Scene(told(4))


def slow_setup() -> Pair:
    """Four seconds of set-up before one of work, in five or in four of eight; what never got so far says nothing."""

    def told(slow: int) -> Told:
        times = [4.0] * slow + [0.9] * (8 - slow)
        worked = [_worked(f"x{n}-0", setup_seconds=setup) for n, setup in enumerate(times)]
        never = [_worked(f"x{n}-1", stage="setup", setup_seconds=9.0) for n in range(8)]
        return each(0, 1, [*worked, *never, *(_worked(f"x{n}-2") for n in range(8))])

    return Scene(told(5)), Scene(told(4))


def quick_setup() -> Pair:
    """All of it in less than a heartbeat is no loss, however short the work."""
    long, short = ([_worked(f"x{n}-0", setup_seconds=each, seconds=0.1) for n in range(8)] for each in (1.1, 0.9))
    return Scene(each(0, 1, long)), Scene(each(0, 1, short))


def _worked(execution: str, **fields: Any) -> Event:
    return ended(execution, stage="agent").model_copy(update=fields)


def silent_services() -> Pair:
    """Of an office and a runner with an execution under way one is not heard; a runner with none need not be."""
    offices = [OfficeTaken(service="packer", instance=name) for name in ("packer-1", "packer-2")]
    told = each(0, 1, [*offices, *dispatched(0), launched("x0-0"), launched("x0-1"), ended("x0-1")])
    some, all_ = frozenset({"packer-2", "other"}), frozenset({"packer-2", "r"})
    return Scene(told, after=9, listened=7.0, heard=some), Scene(told, after=9, listened=7.0, heard=all_)


def silent_office() -> Pair:
    told = each(0, 1, [OfficeTaken(service="packer", instance="packer-1")])
    deaf = Scene(told, after=9, listened=0.0)
    return Scene(told, after=9, listened=7.0, heard=frozenset({"other"})), deaf


def refused() -> Pair:
    def told(count: int) -> Told:
        refusals = [HistoryRejected(execution="x0-0", call=f"c{n}", reason="an image") for n in range(count)]
        return each(0, 1, [*(ended(f"x{n}-0") for n in range(9)), *refusals])

    return Scene(told(9)), Scene(told(8))


def toolless() -> Pair:
    """Eight answers in a row without a call, after one that had some; seven."""

    def told(count: int) -> Told:
        return each(0, 1, [call("x0-0"), *(call(f"x1-{n}", tools=False) for n in range(count)), call("x0-0", 1)])

    return Scene(told(8)), Scene(told(7))


def never_a_tool() -> Pair:
    """From the first on, each the only one of its execution; but a harness of text alone goes on, and is rewarded."""
    single = each(0, 1, [call(f"x0-{n}", tools=False) for n in range(8)])
    return Scene(single), Scene(at(0, rewarded("x0-0", 1.0)) + single)


def unread() -> Pair:
    def told(count: int) -> Told:
        marked = '[{"role": "assistant", "content": "<tool_call>{}</tool_call>"}]'
        said = [call(f"x0-{n}", tools=n >= count, **({"reply": marked} if n < count else {})) for n in range(8)]
        return each(0, 1, said)

    return Scene(told(5)), Scene(told(4))


def cut() -> Pair:
    def told(count: int) -> Told:
        return each(0, 1, [call(f"x0-{n}", finish="length" if n < count else "stop") for n in range(8)])

    return Scene(told(5)), Scene(told(4))


def unheard() -> Pair:
    def told(count: int) -> Told:
        return each(0, 1, [call(f"x0-{n}", delivered=n >= count) for n in range(8)])

    return Scene(told(5)), Scene(told(4))


def unheard_after_all() -> Pair:
    """Recorded for clients that were gone before they had the answers; some of them came back for theirs."""

    def told(back: int) -> Told:
        calls = [call("x0-0", n) for n in range(8)]
        gone = [DeliveryCorrected(execution="x0-0", call=each.call, delivered=False) for each in calls[:5]]
        again = [each.model_copy(update={"delivered": True}) for each in gone[:back]]
        return each(0, 1, [said for n in range(8) for said in (calls[n], *gone[n : n + 1], *again[n : n + 1])])

    return Scene(told(0)), Scene(told(1))


def broken_off() -> Pair:
    def told(count: int) -> Told:
        return each(0, 1, [call(f"x0-{n}", finish="abort" if n < count else "stop") for n in range(8)])

    return Scene(told(5)), Scene(told(4))


def overtaken() -> Pair:
    """ceil(0.5 + 2) - 1 + 2 = 4 steps are what a burst's delay makes."""

    def told(staleness: int) -> Told:
        return at(0, GroupAssigned(step=9, group="g0", version=8 - staleness, staleness=staleness))

    return Scene(told(5)), Scene(told(4))


def old_engine() -> Pair:
    """Version 2 is published at second 10, a call of version 0 begins at second 30; at second 20."""
    published = at(10, WeightsPublished(version=2, weights=WEIGHTS, seconds=1))
    return Scene(published + at(31, call("x0-0"))), Scene(published + at(21, call("x0-0")))


def mixed() -> Pair:
    """Tokens of versions 0 and 4: over two publications of bursts of two steps; of 0 and 2: over one."""

    def told(last: int) -> Told:
        spans = (VersionSpan(version=0, tokens=2), VersionSpan(version=last, tokens=2))
        return at(0, call("x0-0", versions=spans))

    return Scene(told(4)), Scene(told(2))


SCENES: dict[str, list[Pair]] = {
    "stuck-execution": [stuck(), unlaunched()],
    "silent-execution": [hanging()],
    "lease-lapsing": [nearly_over(), last_attempt()],
    "group-never-ready": [unsealed(), treeless(), unscored(), lost_on_the_way(), undecided(), half_dispatched()],
    "evaluator-outage": [outage(), mostly_unresolved()],
    "task-unscorable": [one_bad_task()],
    "zero-variance": [flat_batch()],
    "reward-cliff": [cliff()],
    "harness-failures": [failing_harness()],
    "harness-timeouts": [slow_harness()],
    "slow-setup": [slow_setup(), quick_setup()],
    "service-silent": [silent_services(), silent_office()],
    "history-rejected": [refused()],
    "no-tool-calls": [toolless(), never_a_tool()],
    "unparsed-tool-calls": [unread()],
    "truncated-answers": [cut()],
    "undelivered-answers": [unheard(), unheard_after_all()],
    "engine-errors": [broken_off()],
    "stale-groups": [overtaken()],
    "stale-engine": [old_engine()],
    "mixed-versions": [mixed()],
}
"""By finding."""
