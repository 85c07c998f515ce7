"""`gyre restep RUN STEP --set ...`: a recorded step under other settings, at the weights that it was done at.

The batch is made again from what was admitted: advantages from the recorded rewards, micro-steps by the packer's own
rule, ratios measured and masks decided anew. Nothing but the objective may change; what was sampled stays.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gyre.config import Config
from gyre.config_file import read_table
from gyre.core.admission import seed_of
from gyre.core.cell import batch_loss
from gyre.core.recorded import RecordedGroup, RecordedStep, Stats, merged
from gyre.models.load import MODELLED
from gyre.rl import advantages, packing
from gyre.trainers.port import Finished, Trainer
from schemas.training import ExecutionStats, MaskDecided, MicroStepEnqueued, Row, TrajectoriesAdmitted
from services.minds import packing_shape
from services.reexecute import ReexecutionError, Told, recording, scratch, step_of, weights_of
from services.replica import load_trainer, objective_settings
from services.source import Source

FREE = ("objective.", "rollout.temperature", "optimizer.clip")
"""What may be set otherwise."""
Rows = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A step under other settings."""

    step: int
    settings: tuple[str, ...]
    """As they were given."""
    loss: float
    gradient_norm: float
    """Before clipping."""
    clip_coefficient: float
    apart: float | None
    """`|g - g_run| / |g_run|`, from their sketches; None: the log has none."""
    advantages: dict[str, float]
    """Execution -> what its targets are weighed by."""
    found: dict[str, ExecutionStats]
    """Execution -> what all of its targets gave."""
    origin: RecordedStep

    @property
    def recorded(self) -> dict[str, ExecutionStats]:
        """Execution -> what they gave in the run."""
        return merged(self.origin.stats)


async def restep_under(
    source: Source, step: int, overrides: Sequence[str], told: Told, trainer: Trainer | None = None
) -> Trial:
    """Do one step again under other settings.

    Args:
        source: the run, with its folder.
        step: from 1.
        overrides: `objective.ratio_high=1.01`, `objective.advantage=median`, `objective.name=grpo`, ...
        told: called with (micro-steps done, micro-steps) as they go by.
        trainer: for these settings; by default one is made.
    Raises:
        ConfigError: a setting that cannot be, or that is none of the objective's.
        ReexecutionError: no such step was committed, or its weights are not there any more.
    """
    started = await source.started()
    config = settings_of(Config.recorded(started.config), overrides)
    origin = step_of(await recording(source), step, source.run)
    with scratch() as folder:
        weights = await weights_of(source, config, origin, folder)
        if trainer is None:
            trainer = await asyncio.to_thread(load_trainer, config, source.blobs)
        await asyncio.to_thread(trainer.load, weights)
        return await _Work(source, config, trainer, told).trial(origin, tuple(overrides))


def settings_of(config: Config, overrides: Sequence[str]) -> Config:
    """A run's configuration with these settings; another algorithm brings its own bounds along.

    Raises:
        ConfigError: a setting that cannot be.
        ReexecutionError: one that is none of the objective's, or a run whose trainer computes nothing.
    """
    if config.model.path == MODELLED:
        raise ReexecutionError(
            "model.path = modelled: its trainer computes no policy; there is nothing to set otherwise"
        )
    for each in overrides:
        if not each.startswith(FREE):
            raise ReexecutionError(f"--set {each}: the step is fixed but for {', '.join(FREE)}")
    table = config.table()
    for section, fields in read_table(None, overrides).items():
        own = ("ratio_low", "ratio_high") if "name" in fields else ()
        table[section] = {key: value for key, value in table[section].items() if key not in own} | fields
    return Config.of(table, "--set")


class _Work:
    """One trainer, one batch."""

    def __init__(self, source: Source, config: Config, trainer: Trainer, told: Told) -> None:
        self._source, self._config, self._trainer = source, config, trainer
        self._told, self._done, self._all = told, 0, 0

    async def trial(self, origin: RecordedStep, overrides: tuple[str, ...]) -> Trial:
        """The step at the weights that the trainer has."""
        from gyre.trainers.optimizer import global_norm
        from gyre.trainers.sketch import apart, sketch

        groups = [await self._admitted(each) for each in origin.groups]
        stats = await self._trained(origin.step, groups)
        gradient, shadow = self._trainer.gradient, origin.reduced.sketch
        norm, clip, schedule = global_norm(gradient), self._config.optimizer.clip, self._config.schedule
        return Trial(
            step=origin.step,
            settings=overrides,
            loss=batch_loss(stats, schedule.groups, schedule.executions),
            gradient_norm=norm,
            clip_coefficient=min(1.0, clip / norm) if norm else 1.0,
            apart=apart(sketch(gradient), shadow) if shadow else None,
            advantages={each.execution: each.advantage for group in groups for each in group},
            found=merged(stats),
            origin=origin,
        )

    async def _admitted(self, group: RecordedGroup) -> tuple[TrajectoriesAdmitted, ...]:
        """What a group trains, with the advantages that these settings give its rewards."""
        chosen = self._config.objective
        rule = advantages.rule(chosen.advantage, shuffle=chosen.shuffle_advantages)
        values = rule(tuple(group.rewards.values()), seed_of(self._config.run.seed, group.group))
        now = dict(zip(group.rewards, values, strict=True))
        events = [await self._event(sequence) for sequence in group.admitted.values()]
        changed = [each.model_copy(update={"advantage": now[each.execution]}) for each in events]
        return tuple(each for each in changed if each.targets and each.advantage)

    async def _event(self, sequence: int) -> TrajectoriesAdmitted:
        stored = await self._source.ev.get(sequence)
        event = stored.commit.events[0] if stored and stored.commit else None
        if not isinstance(event, TrajectoriesAdmitted):
            raise ReexecutionError(f"EV sequence {sequence}: holds no TrajectoriesAdmitted; the log is not whole")
        return event

    async def _trained(self, step: int, groups: Sequence[tuple[TrajectoriesAdmitted, ...]]) -> list[Stats]:
        shape = packing_shape(self._config)
        packed = [packing.pack(each, shape) for each in groups]
        self._all = sum(len(each.whole) + 2 * sum(len(split.parts) for split in each.split) for each in packed)
        values = {each.execution: each.advantage for group in groups for each in group}
        stats: list[Stats] = []
        for each in packed:
            stats += [(await self._run(step, "train", rows)).stats for rows in each.whole]
            for split in each.split:
                mask = await self._mask(step, split, values[split.execution])
                stats += [(await self._run(step, "train", rows, (mask,))).stats for rows in split.parts]
        return stats

    async def _mask(self, step: int, split: packing.Split, advantage: float) -> MaskDecided:
        """s_i and m_i of an execution that lies in several micro-steps, by these settings."""
        from gyre.rl.objective import decide

        found = [one for rows in split.parts for one in (await self._run(step, "measure", rows)).measured]
        total, count = math.fsum(each.log_ratio_sum for each in found), sum(each.count for each in found)
        decision = decide(total, count, advantage, objective_settings(self._config))
        return MaskDecided(execution=split.execution, ratio=decision.ratio, mask=decision.mask)

    async def _run(
        self, step: int, kind: Literal["train", "measure"], rows: Rows, masks: tuple[MaskDecided, ...] = ()
    ) -> Finished:
        tokens = sum(len(segment.target) for row in rows for segment in row.segments)
        work = MicroStepEnqueued(step=step, micro_step=self._done, kind=kind, rows=rows, masks=masks, tokens=tokens)
        found = await asyncio.to_thread(self._trainer.micro_step, work)
        self._done += 1
        self._told(self._done, self._all)
        return found
