"""Events about groups, batches and cells, with everything filled in that a test does not care about."""

from schemas.base import pack_floats, pack_ints
from schemas.refs import WeightsRef
from schemas.rewards import GroupReady, Outcome
from schemas.roles import CellLost, CellRegistered, RoleTransitionCompleted
from schemas.training import (
    CellJoined,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    Row,
    Segment,
    TrajectoriesAdmitted,
    Trajectory,
)

WEIGHTS = WeightsRef(digest="0" * 64, size=1, address="weights")


def group_ready(index: int, executions: int, version: int = 0) -> GroupReady:
    outcomes = tuple(
        Outcome(execution=f"x{index}-{place}", standing="valid", reward=0.5) for place in range(executions)
    )
    return GroupReady(group=f"g{index}", index=index, version=version, outcomes=outcomes)


def admitted(index: int, place: int, lengths: tuple[int, ...], advantage: float = 1.0) -> TrajectoriesAdmitted:
    """An execution with trajectories of these lengths, all tokens but the first being targets."""
    trajectories = tuple(
        Trajectory(
            leaf=f"x{index}-{place}-{number}",
            role="main",
            ids=pack_ints(range(length)),
            target=bytes([0]) + bytes([1]) * (length - 1),
            logprobs=pack_floats([0.0] + [-0.5] * (length - 1)),
            targets=length - 1,
        )
        for number, length in enumerate(lengths)
    )
    return TrajectoriesAdmitted(
        execution=f"x{index}-{place}",
        group=f"g{index}",
        version=0,
        advantage=advantage,
        targets=sum(each.targets for each in trajectories),
        seed=0,
        trajectories=trajectories,
    )


def registered(cell: int, instance: str) -> CellRegistered:
    return CellRegistered(cell=cell, instance=instance, url="http://127.0.0.1:1", capacity=4, version=0)


def lost(cell: int, instance: str) -> CellLost:
    return CellLost(cell=cell, instance=instance, reason="no heartbeat")


def moved(cell: int, instance: str, to: str = "train", version: int = 0) -> RoleTransitionCompleted:
    return RoleTransitionCompleted(transition="t", cell=cell, instance=instance, to=to, version=version)  # type: ignore[arg-type]


def joined(step: int, cell: int, instance: str) -> CellJoined:
    return CellJoined(step=step, cell=cell, instance=instance, version=step - 1)


def enqueued(step: int, micro_step: int, kind: str = "train") -> MicroStepEnqueued:
    segment = Segment(
        execution="x", leaf="l", ids=pack_ints([1]), target=b"\1", logprobs=pack_floats([0]), advantage=1, weight=1
    )
    rows = (Row(segments=(segment,)),)
    return MicroStepEnqueued(step=step, micro_step=micro_step, kind=kind, rows=rows, tokens=1)  # type: ignore[arg-type]


def claimed(step: int, micro_step: int, cell: int, instance: str) -> MicroStepClaimed:
    return MicroStepClaimed(step=step, micro_step=micro_step, cell=cell, instance=instance)


def completed(step: int, micro_step: int, cell: int, instance: str, claim: int) -> MicroStepCompleted:
    return MicroStepCompleted(
        step=step, micro_step=micro_step, cell=cell, instance=instance, claim=claim, stats=(), seconds=0.1
    )


def stepped(step: int) -> OptimizerStepped:
    return OptimizerStepped(
        step=step,
        version=step,
        weights=WEIGHTS,
        optimizer=WEIGHTS,
        loss=0.0,
        gradient_norm=1.0,
        clip_coefficient=1.0,
        learning_rate=1e-6,
        seconds=0.1,
    )
