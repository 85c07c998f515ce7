"""The executions of a micro-step: who is in it, who lies in several of its rows, and what holds for their targets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gyre.rl.algorithms.port import Targets
from gyre.rl.objective import Decision
from gyre.trainers.batches import RowTensors
from gyre.trainers.port import MicroStepRefused
from schemas.training import MicroStepEnqueued


def executions_of(enqueued: MicroStepEnqueued) -> tuple[dict[str, int], list[float]]:
    """Index of each execution, in order of appearance, and its advantage."""
    advantages: dict[str, float] = {}
    if not enqueued.rows or not all(each.segments for each in enqueued.rows):
        raise MicroStepRefused(f"micro_step {enqueued.micro_step}: rows and their segments must not be empty")
    for segment in (each for row in enqueued.rows for each in row.segments):
        if advantages.setdefault(segment.execution, segment.advantage) != segment.advantage:
            found = f"advantage = {segment.advantage} and {advantages[segment.execution]}"
            raise MicroStepRefused(f"execution {segment.execution}: {found}: an execution has one advantage")
    return {each: index for index, each in enumerate(advantages)}, list(advantages.values())


def targets_of(row: RowTensors, log_pi: Tensor, decisions: dict[int, Decision], advantages: list[float]) -> Targets:
    """What the objective needs to know of a row's targets."""
    unknown = Decision(1.0, 1)  # of executions that lie in other rows
    known = [decisions.get(each, unknown) for each in range(len(advantages))]
    return Targets(
        log_pi=log_pi,
        log_roll=row.log_roll,
        advantage=torch.tensor(advantages, dtype=torch.float64)[row.owner],
        ratio=torch.tensor([each.ratio for each in known], dtype=torch.float64)[row.owner],
        mask=torch.tensor([each.mask for each in known], dtype=torch.float64)[row.owner],
    )


def spread_over_rows(rows: Sequence[RowTensors], executions: int) -> set[int]:
    """Those whose targets lie in several rows: their ratio is known only once all of these were computed."""
    present = [set(row.owner.tolist()) for row in rows]
    return {each for each in range(executions) if sum(each in owners for owners in present) > 1}
