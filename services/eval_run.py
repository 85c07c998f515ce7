"""`gyre eval`: held-out evaluation of a run's published weights, or of a model, by the services that training uses.

A short-lived run is opened on those weights and supervised until its examiner has scored version 0; no update is made.
"""

import asyncio
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bus.jetstream import Bus
from bus.log import ReadLog
from gyre.config import Config
from gyre.config_file import read_table
from gyre.errors import GyreError
from gyre.models.load import ModelError, find_model
from gyre.trainers.checkpoint import locate
from schemas.base import floats
from schemas.refs import WeightsRef
from schemas.runs import EvaluationScored, RunStarted
from schemas.training import WeightsPublished
from services.demo import FILE
from services.place import NOTE, new_instance
from services.setup import Opened, open_run
from services.source import messages, open_source
from services.supervisor import Supervisor


class EvaluationFailed(GyreError):
    """The evaluation did not come to its end; one line says why."""


async def evaluate(target: str, runs: Path, episodes: int | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Mean held-out score of a run's last published weights, or of a model by name or folder.

    Raises:
        EvaluationFailed: neither a run nor a model has that name, or the services could not go on.
    """
    version, scored = await _measured(target, runs, episodes, overrides)
    return {
        "target": target,
        "version": version,
        "episodes": len(floats(scored.scores)),
        "valid": scored.valid,
        "mean": scored.mean,
        "seconds": round(scored.seconds, 3),
    }


async def score_tasks(
    target: str, runs: Path, tasks: Path, rollouts: int, overrides: Sequence[str]
) -> list[list[float]]:
    """Valid scores of so many episodes on each task of a folder, tasks in order of their folders' names.

    Raises:
        EvaluationFailed: neither a run nor a model has that name, or the services could not go on.
    """
    count = sum(path.is_dir() for path in tasks.iterdir())
    # What left nothing to assess is not counted against a task: an outage would be kept, and is drawn again so.
    chosen = ["reward.nothing_assessable=mask", *overrides, f"tasks.train={tasks}", f"tasks.heldout={tasks}"]
    _, scored = await _measured(target, runs, count * rollouts, chosen)
    scores = floats(scored.scores)
    return [[score for score in scores[place::count] if not math.isnan(score)] for place in range(count)]


async def _measured(
    target: str, runs: Path, episodes: int | None, overrides: Sequence[str]
) -> tuple[int, EvaluationScored]:
    with tempfile.TemporaryDirectory(prefix="gyre-eval-") as name:
        folder = Path(name)
        if (runs / target / NOTE).is_file():
            version, config = await _of_run(target, runs, folder, overrides)
        else:
            version, config = 0, _of_model(target, runs, overrides)
        return version, await _scored(_only_evaluation(config, folder, episodes))


async def last_weights(ev: ReadLog) -> tuple[int, RunStarted, WeightsRef]:
    """(version, the run's beginning, weights) of what was published last. Raises `EvaluationFailed`."""
    version, begin, weights = 0, None, None
    async for stored in messages(ev):
        for event in stored.commit.events if stored.commit else ():
            if isinstance(event, RunStarted):
                begin, weights = event, event.weights
            elif isinstance(event, WeightsPublished):
                version, weights = event.version, event.weights
    if begin is None or weights is None:
        raise EvaluationFailed("the run's log does not begin with RunStarted; it has no weights to evaluate")
    return version, begin, weights


async def _of_run(run: str, runs: Path, folder: Path, overrides: Sequence[str]) -> tuple[int, Config]:
    async with open_source(run, runs) as source:
        version, begin, weights = await last_weights(source.ev)
    home = (runs / run).absolute()
    config = Config.recorded(begin.config)
    model = folder / "model"
    await asyncio.to_thread(materialise, find_model(config.model.path), locate(home, weights), model)
    tasks = str(home / "tasks" / "heldout")
    return version, changed(
        config, [f"model.path={model}", f"tasks.train={tasks}", f"tasks.heldout={tasks}", *overrides]
    )


def _of_model(model: str, runs: Path, overrides: Sequence[str]) -> Config:
    try:
        find_model(model)
    except ModelError as error:
        raise EvaluationFailed(
            f"{model}: no run in {runs} (archives hold no weights), and no model: {error}"
        ) from error
    config = Config.load(FILE, [f"model.path={model}", *overrides])
    return changed(config, [f"tasks.train={config.tasks.heldout}"])


def materialise(base: Path, weights: Path, folder: Path) -> None:
    """A model folder with these weights; everything else is the base model's."""
    folder.mkdir(parents=True)
    for file in base.iterdir():
        if file.is_file() and ".safetensors" not in file.name:
            shutil.copy2(file, folder / file.name)
    shutil.copy2(weights, folder / "model.safetensors")


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """The configuration with `section.field=value` replaced. Raises `ConfigError`."""
    table = config.table()
    for section, fields in read_table(None, overrides).items():
        table[section] = {**table.get(section, {}), **fields} if isinstance(fields, dict) else fields
    return Config.of(table)


def _only_evaluation(config: Config, folder: Path, episodes: int | None) -> Config:
    """The smallest run that begins with an evaluation: its few training executions are never waited for."""
    fields = {
        "run": config.run.model_copy(update={"name": "evaluation", "folder": str(folder), "steps": 1}),
        "schedule": config.schedule.model_copy(update={"groups": 1, "executions": 2, "phi": 0.0, "mu": 1}),
        "evaluation": config.evaluation.model_copy(update={"episodes": episodes or config.evaluation.episodes or 64}),
        "bus": config.bus.model_copy(update={"url": "", "durability": "laptop"}),
    }
    return config.model_copy(update=fields)


async def _scored(config: Config) -> EvaluationScored:
    opened = await open_run(config)
    try:
        return await _supervised(opened, config)
    finally:
        if opened.server:
            await asyncio.to_thread(opened.server.stop)


async def _supervised(opened: Opened, config: Config) -> EvaluationScored:
    bus = await Bus.connect(opened.url, opened.run, "control", new_instance("control"), opened.folder)
    reading = asyncio.create_task(_first_score(bus))
    supervisor = Supervisor(opened.folder, config, opened.server)
    try:
        await supervisor.run(reading.done)
        if supervisor.fatal:
            raise EvaluationFailed(f"evaluation: {supervisor.fatal}")
        return await reading
    finally:
        reading.cancel()
        await bus.close()


async def _first_score(bus: Bus) -> EvaluationScored:
    async for stored in bus.ev.read(0):
        for event in stored.commit.events if stored.commit else ():
            if isinstance(event, EvaluationScored):
                return event
    raise EvaluationFailed("evaluation: the log ended before a score")
