"""What can be found out about a configuration before anything starts."""

import tempfile
from pathlib import Path
from typing import Any

from gyre.config import Config
from gyre.core.staleness import boundary_mean, expected_mean
from gyre.tasks.folder import Task
from services.preflight import preflight
from services.setup import HELDOUT_SEED, copy_tasks


def check_config(config: Config) -> dict[str, Any]:
    """Sizes and expectations of a run. Raises `ConfigError`, `TaskError`, `ModelError`."""
    preflight(config)
    with tempfile.TemporaryDirectory() as folder:
        train = copy_tasks(config.tasks.train, Path(folder) / "train", config.run.seed)
        heldout = copy_tasks(config.tasks.heldout, Path(folder) / "heldout", HELDOUT_SEED)
        schedule = config.schedule
        return {
            "model": config.model.path,
            "train_tasks": len(train),
            "heldout_tasks": len(heldout),
            "executions": config.run.steps * schedule.groups * schedule.executions,
            "longest_execution": _longest(train),
            "staleness": round(expected_mean(config.run.steps, schedule.groups, schedule.phi, schedule.mu), 4),
            "staleness_long_run": boundary_mean(schedule.phi, schedule.mu),
        }


def _longest(tasks: tuple[Task, ...]) -> str:
    return f"{max(task.agent_timeout for task in tasks):g} s"
