"""How long the simulator takes for one run at cluster scale: pure code, one process.

    python -m benchmarks.simulation --cells 1024 --executions 1000000

tells on stderr how far it is, and prints one JSON object: what `gyre simulate --preset scale --json` prints, and
cpu_seconds, events (what the scheduler and the packer folded) and peak_mb (of this process).
"""

import argparse
import json
import resource
import sys
import time

from gyre.core.simulation.presets import HOUR, scale
from gyre.core.simulation.workload import Job, Workload
from gyre.core.simulation.world import World

PARTS = 20
"""So many times it is told how far it is."""


class Told:
    """A workload that tells on stderr which part of its groups has been dispatched."""

    def __init__(self, workload: Workload, groups: int) -> None:
        """Of a run of so many groups."""
        self._workload, self._groups = workload, groups
        self._told = 0
        self._began = time.monotonic()

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        part = PARTS * (index + 1) // self._groups
        if part > self._told:
            self._told = part
            seconds = time.monotonic() - self._began
            print(f"{100 * part // PARTS:3} % dispatched after {seconds:.0f} s", file=sys.stderr, flush=True)
        return self._workload.jobs(index, task, executions)

    def micro_steps(self, index: int) -> tuple[float, ...]:
        return self._workload.micro_steps(index)


def measure(cells: int, executions: int) -> dict[str, int | float]:
    """See one run through."""
    case = scale(cells, executions)
    setting = case.setting()
    began, spent = time.monotonic(), time.process_time()
    world = World(setting, Told(case.workload(), setting.plan.total_groups), None)
    outcome = world.run()
    seconds, spent = time.monotonic() - began, time.process_time() - spent
    return {
        "cells": cells,
        "executions": outcome.executions,
        "steps": len(outcome.updates),
        "transitions": outcome.transitions,
        "hours": outcome.seconds / HOUR,
        "staleness": outcome.mean_staleness,
        "events": world.events,
        "seconds": seconds,
        "cpu_seconds": spent,
        "executions_per_second": outcome.executions / seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1024)
    parser.add_argument("--executions", type=int, default=1_000_000, help="at least so many")
    given = parser.parse_args()
    print(json.dumps(measure(given.cells, given.executions)))


if __name__ == "__main__":
    main()
