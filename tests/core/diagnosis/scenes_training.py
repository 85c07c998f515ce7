"""Scenes of cells, steps, clocks and the log itself: for each finding one in which it speaks and one in which not."""

from dataclasses import replace

from gyre.core.diagnosis.finding import Room
from schemas.envelope import Event
from schemas.roles import RoleTransitionFailed
from schemas.runs import EventQuarantined, OfficeTaken, RunFinished
from schemas.training import (
    BatchOpened,
    ExecutionStats,
    ExpertAgreement,
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    Passage,
    ReductionOpened,
    StepAborted,
    StreamClosed,
)
from tests.core.diagnosis.scene import Said, Scene, Told, at, dispatched, each, launched, ready
from tests.core.diagnosis.scenes_rollout import Pair
from tests.core.facts import lost
from tests.core.told import asked, moved
from tests.core.world import DIGEST, registered, run_started, stepped

CELLS: Told = at(0, run_started(), registered(0, "a"), registered(1, "b"))
FINISHED = RunFinished(steps=1, dispatched=4, launched=4, terminated=4)


def enqueued(step: int, micro_step: int) -> MicroStepEnqueued:
    return MicroStepEnqueued(step=step, micro_step=micro_step, kind="train", rows=(), tokens=1)


def claimed(step: int, micro_step: int = 0, cell: int = 0) -> MicroStepClaimed:
    return MicroStepClaimed(step=step, micro_step=micro_step, cell=cell, instance="a")


def completed(step: int, micro_step: int = 0, *stats: ExecutionStats) -> MicroStepCompleted:
    return MicroStepCompleted(step=step, micro_step=micro_step, cell=0, instance="a", claim=1, stats=stats, seconds=1)


def trained(execution: str, mask: int = 1, ratio: float = 1.0, delta: float = 0.0) -> ExecutionStats:
    return ExecutionStats(
        execution=execution,
        targets=1,
        ratio=ratio,
        mask=mask,
        loss=0,
        max_delta_log_p=delta,
        k3=0,  # type: ignore[arg-type]
    )


def opened(step: int) -> BatchOpened:
    return BatchOpened(step=step, version=step - 1, groups=2)


def assigned(step: int, group: int, staleness: int = 0) -> GroupAssigned:
    return GroupAssigned(step=step, group=f"g{group}", version=0, staleness=staleness)


def rests() -> Pair:
    """A pipeline holds its last micro-step for 21 s: of a stream that is closed, or that goes on."""
    passed = completed(1).model_copy(update={"passage": Passage(startups=1, drains=0, pauses=0, rows=2)})
    told = CELLS + at(1, claimed(1)) + at(3, passed) + at(4, claimed(1, 1))
    closed = at(5, StreamClosed(step=1, micro_steps=2))
    return Scene(told + closed, after=20), Scene(told, after=21)


def unheard_cell() -> Pair:
    """Listened for three seconds: a beats and b does not; both do."""
    some, all_ = frozenset({"a"}), frozenset({"a", "b"})
    return Scene(CELLS, after=3, listened=3.0, heard=some), Scene(CELLS, after=3, listened=3.0, heard=all_)


def held() -> Pair:
    """The longest took 2 s; held for 21 s by a cell that lives, whoever it was before, or lost with its holder."""
    told = CELLS + at(1, claimed(1, 0, 1)) + at(3, completed(1)) + at(4, claimed(1, 1, 1))
    late = at(5, lost(1, "former"))
    return Scene(told + late, after=21), Scene(told + at(5, lost(1, "b"), registered(1, "c")), after=60)


def starving() -> Pair:
    """A batch of two groups has one, and nothing is under way; another group is dispatched."""
    told = CELLS + at(0, *dispatched(0)) + at(1, ready(0, (1.0,) * 4), opened(1), assigned(1, 0))
    told = [said for said in told if getattr(said.event, "execution", "") == ""]
    return Scene(told, after=16), Scene(told + at(1, *dispatched(1)), after=16)


def starved() -> Pair:
    """Over two bursts 95 of 100 seconds a step with nothing to do; 80."""

    def told(idle: float) -> Told:
        whole = list(CELLS)
        for step in range(1, 5):
            begin = 100.0 * step
            whole += at(begin, opened(step)) + at(begin + idle, enqueued(step, 0), claimed(step))
            whole += at(begin + 99, completed(step), StreamClosed(step=step, micro_steps=1))
            whole += at(begin + 99.9, stepped(step))
        return whole

    return Scene(told(95)), Scene(told(80))


def no_room() -> Pair:
    """Both cells train while executions are queued; one serves."""
    told = CELLS + at(1, *dispatched(0)) + at(2, asked(0, "train"))
    both = [*told, *at(3, asked(1, "train"))]
    named = [replace(said, event=_as(said.event)) for said in both]
    return Scene(named, after=16), Scene(named[:-1], after=16)


def _as(event: Event | str) -> Event | str:
    """Told cells are called cell-0 and cell-1 there, a and b here."""
    name = getattr(event, "instance", "")
    return event.model_copy(update={"instance": {"cell-0": "a", "cell-1": "b"}.get(name, name)}) if name else event  # type: ignore[union-attr]


def flapping() -> Pair:
    """Four registrations, each within 60 s of the last; the last one after a minute."""

    def told(last: float) -> Told:
        times = (0, 20, 40, 40 + last)
        return CELLS[:-1] + [said for n, time in enumerate(times) for said in at(time, registered(1, f"i{n}"))]

    return Scene(told(59)), Scene(told(61))


def failing_moves() -> Pair:
    failed = RoleTransitionFailed(transition="t", cell=1, instance="b", phase="restore", reason="no memory")
    good = moved(1, "train")
    return Scene(CELLS + each(1, 1, [failed] * 3)), Scene(CELLS + each(1, 1, [failed, failed, good, failed, failed]))


def gone() -> Pair:
    told = CELLS + at(1, lost(1, "b"))
    return Scene(told, after=16), Scene(told + at(2, registered(1, "c")), after=600)


def never_came() -> Pair:
    return Scene(CELLS[:-1], after=61), Scene(CELLS, after=61)


def contested() -> Pair:
    def told(apart: float) -> Told:
        return each(0, apart, [OfficeTaken(service="packer", instance=f"p{n}") for n in range(4)])

    return Scene(told(10)), Scene(told(70))


def spike() -> Pair:
    def told(norm: float) -> Told:
        norms = [1.0, 1.0, 2.0, 2.0, norm]
        steps = [stepped(n + 1).model_copy(update={"gradient_norm": each}) for n, each in enumerate(norms)]
        return each(0, 1, steps)

    return Scene(told(15.1)), Scene(told(14.9))


def masked() -> Pair:
    def told(count: int) -> Told:
        stats = [trained(f"x0-{n}", mask=int(n >= count)) for n in range(10)]
        return each(0, 1, [completed(1, 0, *stats), stepped(1)])

    return Scene(told(9)), Scene(told(8))


def mismatch() -> Pair:
    """At equal weights a ratio of 1.02; the same where the weights differ."""

    def told(staleness: int) -> Told:
        stats = trained("x0-0", ratio=1.02, delta=0.2)
        return each(0, 1, [ready(0, (1.0, 0.0)), opened(1), assigned(1, 0, staleness), completed(1, 0, stats)])

    return Scene(told(0)), Scene(told(1))


def misplaced() -> Pair:
    """Routers that would choose two thirds of the experts taken; nine tenths."""

    def told(overlap: float) -> Told:
        stats = trained("x0-0").model_copy(update={"experts": ExpertAgreement(choices=9, overlap=overlap, top=0.2)})
        return each(0, 1, [opened(1), assigned(1, 0), completed(1, 0, stats)])

    return Scene(told(0.65)), Scene(told(0.9))


def poison() -> Pair:
    def told(reissues: int) -> Told:
        return each(
            0,
            1,
            [
                MicroStepReissued(step=1, micro_step=0, enqueued=1, reissue=n + 1, reason="cell 1 was lost")
                for n in range(reissues)
            ],
        )

    return Scene(told(3)), Scene(told(2))


def given_up() -> Pair:
    aborted = StepAborted(step=1, micro_step=0, reason="lost 4 claimants")
    return Scene(CELLS + at(1, aborted)), Scene(CELLS + at(1, FINISHED))


def reducing() -> Pair:
    def told(epochs: int) -> Told:
        return each(
            0,
            1,
            [
                ReductionOpened(step=1, epoch=n + 1, members=(0,), instances=("a",), contributions=(), reason="late")
                for n in range(epochs)
            ],
        )

    return Scene(told(3)), Scene(told(2))


def skew() -> Pair:
    """The effect says to be 1.5 s older than its cause; 0.5 s."""

    def told(behind: float) -> Told:
        return [Said(10, run_started()), Said(10 - behind, registered(0, "a"), "cell", cause=1)]

    return Scene(told(1.5)), Scene(told(0.5))


def ahead() -> Pair:
    """The latest commit is of two seconds from now; of now."""
    return Scene(CELLS, after=-2), Scene(CELLS, after=0)


def quarantined() -> Pair:
    event = EventQuarantined(stream="EV_told", sequence=4, subject="ev", digest=DIGEST, reason="no JSON")
    return Scene([*CELLS, Said(1, "no JSON"), *at(2, event)]), Scene(CELLS)


def unreadable() -> Pair:
    """An archive of which nobody has said so."""
    return Scene([*CELLS, Said(1, "no JSON")]), Scene(CELLS)


def filling() -> Pair:
    """One of ten steps took a ninth of the room; a tenth and a run that is over."""
    told = CELLS + at(1, stepped(1))
    return (
        Scene(told, after=1, rooms=(Room("EV_told", 1000, 9000),)),
        Scene(told + at(2, FINISHED), rooms=(Room("EV_told", 1000, 9000),)),
    )


def full() -> Pair:
    return (
        Scene(CELLS, rooms=(Room("CALL_told", 9500, 10000),)),
        Scene(CELLS, rooms=(Room("CALL_told", 9000, 10000),)),
    )


def quiet() -> Pair:
    """The longest pause was 5 s: 20 s are allowed, and 100 s more while an execution runs."""
    told = CELLS + at(5, opened(1))
    busy = told + at(6, *dispatched(0), launched("x0-0"))
    return Scene(told, after=21), Scene(busy, after=40)


SCENES: dict[str, list[Pair]] = {
    "lease-lapsing": [unheard_cell(), held(), rests()],
    "supply-starvation": [starving(), starved()],
    "no-rollout-capacity": [no_room()],
    "cell-flapping": [flapping(), failing_moves()],
    "cell-missing": [gone(), never_came()],
    "office-contested": [contested()],
    "gradient-spike": [spike()],
    "ratio-clipped": [masked()],
    "logprob-mismatch": [mismatch()],
    "experts-misplaced": [misplaced()],
    "poison-micro-step": [poison(), given_up()],
    "reduction-failing": [reducing()],
    "clock-skew": [skew(), ahead()],
    "quarantined": [quarantined(), unreadable()],
    "stream-full": [filling(), full()],
    "silent-log": [quiet()],
}
"""By finding."""
