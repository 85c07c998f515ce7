"""What can be found out about a configuration before anything starts."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from gyre.config import Config
from gyre.core.plan import Plan
from gyre.core.staleness import boundary_mean, continuous_mean, expected_mean
from gyre.tasks.folder import Task
from services.judges import absent_file, absent_program
from services.preflight import preflight
from services.setup import HELDOUT_SEED, copy_tasks, sandboxes_of
from services.tasks.images import refuse_missing


def check_config(config: Config) -> dict[str, Any]:
    """Sizes and expectations of a run. Raises `ConfigError`, `TaskError`, `ModelError`."""
    preflight(config)
    with tempfile.TemporaryDirectory() as folder:
        kinds = sandboxes_of(config)
        train = copy_tasks(config.tasks.train, Path(folder) / "train", config.run.seed, kinds)
        heldout = copy_tasks(config.tasks.heldout, Path(folder) / "heldout", HELDOUT_SEED, kinds)
        for source, tasks in ((config.tasks.train, train), (config.tasks.heldout, heldout)):
            refuse_missing(config, tasks, source)
        plan = config.plan([task.name for task in train])
        expected = expected_staleness(config)
        return {
            "model": config.model.path,
            "train_tasks": len(train),
            "heldout_tasks": len(heldout),
            "executions": plan.total_groups * plan.size,
            "longest_execution": _longest(train),
            "staleness": None if expected is None else round(expected, 4),
            "staleness_long_run": _long_run(plan),
            "warnings": _warnings(config, plan, (*train, *heldout)),
        }


def expected_staleness(config: Config) -> float | None:
    """Mean over the groups of the whole run, training steps; None where it hangs on when groups become ready."""
    schedule = config.schedule
    if schedule.dispatch == "continuous":
        return None
    return expected_mean(config.run.steps, schedule.groups, schedule.phi, schedule.mu)


def _long_run(plan: Plan) -> float:
    """Under continuous dispatch the least: what is ready and left at a publication adds to it."""
    if plan.dispatching == "continuous":
        return continuous_mean(plan.depth, 0, plan.groups, plan.mu)
    return boundary_mean(plan.phi, plan.mu)


def _warnings(config: Config, plan: Plan, tasks: tuple[Task, ...]) -> list[str]:
    """What can be kept, but will hardly be meant: one line each, naming field, value and fix."""
    return [*_harness_away(config), *_evaluator_away(config, tasks), *_idle_satellites(config, plan)]


def _harness_away(config: Config) -> list[str]:
    """A program that this machine has not; where images hold harnesses nothing is known, nor on another machine."""
    program = config.harness.command[0]
    if config.sandbox.kind not in ("process", "bubblewrap") or "{" in program or shutil.which(program):
        return []
    rule = "no such program here: every execution would fail; install it, or give its path, where runners are"
    return [f"harness.command = {program}: {rule}"]


def _evaluator_away(config: Config, tasks: tuple[Task, ...]) -> list[str]:
    rule = "nothing would get a valid score; install it, or give its path, where evaluators are"
    if absent := absent_program(config, tasks):
        return [f"evaluator.command = {absent}: {rule}"]
    unless = "unless the work holds it, " if (absent := absent_file(config, tasks)) else ""
    return [f"evaluator.command = {absent}: {unless}{rule}"] if absent else []


def _idle_satellites(config: Config, plan: Plan) -> list[str]:
    satellites = plan.kind == "elastic" and plan.cells > 1
    if not (satellites and plan.stream and plan.supply_needed >= plan.groups):
        return []
    why = f"asks for {plan.supply_needed} groups, but once the core pulled one fewer than B = {plan.groups} are left"
    way_out = f"set it to at most {(plan.groups - 1) / plan.groups:g}" if plan.groups > 1 else "raise schedule.groups"
    return [f"schedule.rho_min = {config.schedule.rho_min:g}: {why}: no satellite will train; {way_out}"]


def _longest(tasks: tuple[Task, ...]) -> str:
    return f"{max(task.agent_timeout for task in tasks):g} s"
