"""Two runs told by hand, for a warehouse to be asked about: one in which all is well, one with every fault in it.

Both: two tasks, four groups of two executions, two steps, one cell beside the core; a second between commits.
"""

import json
import math
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from bus.archive import export
from bus.blobs import Blobs
from bus.codec import encode
from gyre.warehouse.rows import lines
from schemas.base import pack_floats, pack_ints
from schemas.calls import ModelCallRecorded, RecordsSealed, SamplingRecord, VersionSpan
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated, GroupDispatched
from schemas.envelope import COMMIT, Commit, Event, Producer
from schemas.rewards import (
    AssessmentRecorded,
    GroupReady,
    LeafSummary,
    Outcome,
    Provenance,
    RewardAssigned,
    RewardUnresolved,
    TreeBuilt,
)
from schemas.runs import EvaluationScored, RunFinished, RunStarted
from schemas.speakers import stream_of
from schemas.training import (
    BatchOpened,
    Contribution,
    ExecutionStats,
    GradientReduced,
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    Moments,
    OptimizerStepped,
    ReductionOpened,
    StreamClosed,
    TrajectoriesAdmitted,
    WeightsPublished,
)
from tests.core.told import asked, moved
from tests.core.world import DIGEST, WEIGHTS, registered

BEGIN = 1_900_000_000_000_000_000
"""UTC nanoseconds of a run's first event."""
TASKS = ("a", "b", "a", "b")
REPLY = json.dumps([{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "write", "arguments": ""}}]}])
Told = list[Event | str]
"""Events in order; a text is a message that nobody can read."""


def bare() -> Told:
    """A run that has begun, and nothing more."""
    return [started()]


def healthy() -> Told:
    """Every group has one execution that solves its task and one that does not, at first and at last."""
    told: Told = [started(), registered(0, "cell-0"), registered(1, "cell-1"), *dispatch(), evaluated(0, [1, 1])]
    told += [asked(0, "train"), moved(0, "train")]
    for group in range(4):
        for place in range(2):
            told += executed(group, place, reward=float(place))
        told += [ready(group, [(0.0, "valid"), (1.0, "valid")])]
    told += [*trained(1, (0, 1)), *trained(2, (2, 3)), published(2), asked(0, "rollout"), moved(0, "rollout")]
    told += [evaluated(2, [1, 1])]
    return [*told, RunFinished(steps=2, dispatched=8, launched=8, terminated=8)]


def faulty() -> Told:
    """Faults of every kind; the task `a` gets worse."""
    told: Told = [started(), registered(0, "cell-0"), registered(1, "cell-1"), *dispatch(), evaluated(0, [1, 1])]
    told += ["no JSON"]
    told += [*executed(0, 0, reward=1), *executed(0, 1, reward=1), ready(0, [(1.0, "valid"), (1.0, "valid")])]
    told += [*executed(1, 0, reward=0), *executed(1, 1, reward=1), ready(1, [(0.0, "valid"), (1.0, "valid")])]
    told += [*executed(2, 0, reward=0, reason="timeout"), *executed(2, 1, reward=None)]
    told += [ready(2, [(0.0, "valid"), (None, "excluded")])]
    told += [*executed(3, 0, reward=1), *executed(3, 1, reward=0, stage="setup")]
    told += [ready(3, [(1.0, "valid"), (0.0, "placeholder")])]
    return [*told, *trained(1, (0, 1)), *trained(2, (2, 3), reissued=True), evaluated(2, [0.5, float("nan")])]


def rounded() -> Told:
    """Rewards of a group that are equal but for rounding, and of one that are not."""
    told: Told = [started(), *dispatch(), *executed(0, 0, reward=0.3), *executed(0, 1, reward=0.1 + 0.2)]
    told += [ready(0, [(0.3, "valid"), (0.1 + 0.2, "valid")])]
    told += [*executed(1, 0, reward=0.3), *executed(1, 1, reward=0.301), ready(1, [(0.3, "valid"), (0.301, "valid")])]
    return told


def published(version: int) -> WeightsPublished:
    """As what changed."""
    return WeightsPublished(
        version=version, weights=WEIGHTS, seconds=0.5, transport="store", sent=WEIGHTS.size // 4, changed=0.25
    )


def rows(run: str, told: Told) -> list[bytes]:
    """All of a run as rows: a commit for each event, a second apart."""
    return [line for part in messages(run, told) for line in part]


def messages(run: str, told: Told) -> Iterator[list[bytes]]:
    """The rows of each message."""
    sequences = {"EV": 0, "CALL": 0}
    for seconds, event in enumerate(told):
        stream = "EV" if isinstance(event, str) else stream_of(event.type)
        sequences[stream] += 1
        data = event.encode() if isinstance(event, str) else COMMIT.dump_json(committed(run, seconds, event))
        yield lines(run, stream, sequences[stream], f"ev.{run}.control.run", data)


def committed(run: str, seconds: float, *events: Event) -> Commit:
    """A commit of these events, so many seconds after the run's beginning."""
    return Commit(
        run=run,
        producer=Producer(service="control", instance="control-1"),
        commit=f"c{round(seconds * 1000)}",
        causation=min(1, round(seconds)),
        as_of=0,
        correlation=run,
        time=BEGIN + round(seconds * 1e9),
        events=events,
    )


def started() -> RunStarted:
    return RunStarted(
        config={"run": {"seed": 0}}, config_digest=DIGEST, seed=0, code_version="1", weights=WEIGHTS,
        tasks=("a", "b"), heldout=("h", "i"),
    )  # fmt: skip


def dispatch() -> Told:
    told: Told = []
    for group, task in enumerate(TASKS):
        version = 0 if group < 2 else 2
        told += [GroupDispatched(group=f"g{group}", index=group, task=task, version=version, executions=2)]
        told += [
            ExecutionDispatched(
                execution=f"x{group}-{place}", group=f"g{group}", task=task, index=place, version=version, seed=0
            )
            for place in range(2)
        ]
    return told


def executed(group: int, place: int, reward: float | None, **ended: Any) -> Told:
    """An execution from launch to reward, with two calls; None: no valid score; `stage` setup: nothing to assess."""
    name, of = f"x{group}-{place}", f"g{group}"
    setup = ended.get("stage") == "setup"
    terminated = ExecutionTerminated(
        **{
            "execution": name, "group": of, "task": TASKS[group], "reason": "failed" if setup else "completed",
            "stage": "closing", "exit_code": 0, "seconds": 4.0 + group, "state": None,
            "setup_seconds": None if setup else 0.5,
            "detail": "no image" if setup else "",
        } | ended
    )  # fmt: skip
    launched = ExecutionLaunched(execution=name, group=of, runner="r", token_digest=DIGEST, deadline_seconds=9)
    calls: Told = [] if setup else [call(name, 0), call(name, 1)]
    sealed = RecordsSealed(execution=name, last_sequence=len(calls), count=len(calls), digest=DIGEST)
    leaves = () if setup else (leaf(name, 0, 9), leaf(name, 1, 16))
    tree = TreeBuilt(execution=name, digest=DIGEST, nodes=len(calls), leaves=leaves, body=None)
    return [launched, *calls, terminated, sealed, tree, *graded(name, of, reward, placeholder=setup)]


def graded(execution: str, group: str, reward: float | None, *, placeholder: bool) -> Told:
    assessment = AssessmentRecorded(
        assessment=f"{execution}-a1", execution=execution, designated=True, attempt=1, state=None, branch=None,
        score=reward, valid=reward is not None, seconds=0.5, detail="" if reward is not None else "its tests crash",
        provenance=Provenance(evaluator="judge", digest=DIGEST, model="wise") if reward is not None else None,
    )  # fmt: skip
    if reward is None:
        unresolved = RewardUnresolved(execution=execution, group=group, attempts=1, reason="its tests crash")
        return [assessment, unresolved]
    assigned = RewardAssigned(execution=execution, group=group, reward=reward, placeholder=placeholder)
    admitted = TrajectoriesAdmitted(
        execution=execution, group=group, version=0, advantage=0.0, targets=6, seed=0, trajectories=()
    )
    return [assigned, admitted] if placeholder else [assessment, assigned, admitted]


def call(execution: str, index: int) -> ModelCallRecorded:
    """The second one goes on from the first one's input alone: 5 + 4 tokens, then 7 + 4 behind a prefix of 5."""
    return ModelCallRecorded(
        execution=execution, call=f"{execution}-c{index}", index=index, thread="main", kind="turn",
        parent=f"{execution}-c0" if index else None, prefix_tokens=5 * index, prefix_messages=index,
        input_ids=pack_ints(range(5 + 2 * index)), output_ids=pack_ints(range(4)), logprobs=pack_floats([0.0] * 4),
        versions=(VersionSpan(version=0, tokens=1), VersionSpan(version=index, tokens=3)), finish="stop",
        sampling=SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=1), messages="[]", reply=REPLY,
        system_digest=DIGEST, cells=(1,), cached_tokens=5 * index, queue_seconds=0.25, engine_seconds=0.5,
        total_seconds=1.0, delivered=True,
    )  # fmt: skip


def leaf(execution: str, index: int, tokens: int) -> LeafSummary:
    return LeafSummary(leaf=f"{execution}-c{index}", role="main", tokens=tokens, targets=4)


def ready(group: int, outcomes: list[tuple[float | None, Any]]) -> GroupReady:
    told = tuple(
        Outcome(execution=f"x{group}-{place}", standing=standing, reward=reward)
        for place, (reward, standing) in enumerate(outcomes)
    )
    return GroupReady(group=f"g{group}", index=group, version=0, outcomes=told)


def trained(step: int, groups: tuple[int, int], *, reissued: bool = False) -> Told:
    """A step of two micro-steps; the second one is claimed again when it is reissued."""
    told: Told = [BatchOpened(step=step, version=step - 1, groups=2)]
    told += [GroupAssigned(step=step, group=f"g{group}", version=0, staleness=step - 1) for group in groups]
    for place in range(2):
        told += [MicroStepEnqueued(step=step, micro_step=place, kind="train", rows=(), tokens=16)]
        told += [MicroStepClaimed(step=step, micro_step=place, cell=0, instance="cell-0")]
        if reissued and place:
            told += [MicroStepReissued(step=step, micro_step=1, enqueued=1, reissue=1, reason="its cell died")]
            told += [MicroStepClaimed(step=step, micro_step=1, cell=1, instance="cell-1")]
        told += [completed(step, place, f"x{groups[0]}-{place}", mask=place)]
    shares = tuple(Contribution(micro_step=place, cell=0, claim=1) for place in range(2))
    told += [
        StreamClosed(step=step, micro_steps=2),
        ReductionOpened(step=step, epoch=1, members=(0,), instances=("cell-0",), contributions=shares),
        GradientReduced(step=step, epoch=1, members=(0,), micro_steps=2, gradient_norm=2.0 * step, seconds=0.1),
        OptimizerStepped(
            step=step, version=step, weights=WEIGHTS, optimizer=WEIGHTS, loss=0.5, gradient_norm=2.0 * step,
            clip_coefficient=0.5 / step, learning_rate=1e-6, seconds=0.1,
        ),
    ]  # fmt: skip
    return told


def completed(step: int, place: int, execution: str, mask: Any) -> MicroStepCompleted:
    stats = ExecutionStats(
        execution=execution, targets=4, ratio=1.0 + place, mask=mask, loss=0.25, max_delta_log_p=0.125, k3=0.5,
        moments=moments(*LOGPROBS[place]) if step == 1 else None,
    )  # fmt: skip
    return MicroStepCompleted(
        step=step, micro_step=place, cell=0, instance="cell-0", claim=1, stats=(stats,), seconds=2.0
    )


LOGPROBS = (
    ((-0.5, -1.0, -1.5, -2.0), (-0.5, -1.125, -1.5, -2.0)),
    ((-0.25, -3.0, -0.125, -1.0), (-0.25, -2.0, -0.125, -1.5)),
)
"""Of each micro-step of a first step: what the rollout recorded of four targets, and what training found."""


def moments(rollout: tuple[float, ...], train: tuple[float, ...]) -> Moments:
    return Moments(
        sum_rollout=sum(rollout),
        sum_train=sum(train),
        sum_rollout_squared=sum(x * x for x in rollout),
        sum_train_squared=sum(y * y for y in train),
        sum_product=sum(x * y for x, y in zip(rollout, train, strict=True)),
    )


def evaluated(version: int, scores: list[float]) -> EvaluationScored:
    valid = [score for score in scores if not math.isnan(score)]
    return EvaluationScored(
        evaluation=f"e{version}", version=version, scores=pack_floats(scores), mean=sum(valid) / len(valid),
        valid=len(valid), seconds=1,
    )  # fmt: skip


class Raw:
    """One stream of a told run as stored: what an archive is made from."""

    def __init__(self, run: str, told: Told, stream: str, blobs: Blobs) -> None:
        """Of all that was told, what belongs to this stream."""
        self._messages: list[tuple[int, str, bytes]] = []
        for seconds, event in enumerate(told):
            if (isinstance(event, str) and stream == "EV") or (
                not isinstance(event, str) and stream_of(event.type) == stream
            ):
                body = event.encode() if isinstance(event, str) else encode(committed(run, seconds, event), blobs)
                subject = f"ev.{run}.control.run" if stream == "EV" else f"call.{run}.{getattr(event, 'execution', '')}"
                self._messages.append((len(self._messages) + 1, subject, body))

    async def head(self) -> int:
        return len(self._messages)

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        for message in self._messages:
            yield message


async def archived(run: str, told: Told, folder: Path) -> Path:
    """A told run as an archive in this folder."""
    blobs, path = Blobs(folder / "blobs"), folder / f"{run}.jsonl.zst"
    await export(path, run, Raw(run, told, "EV", blobs), Raw(run, told, "CALL", blobs), blobs)
    return path
