"""A scheduler starts without torch and decides in no time."""

import subprocess
import sys
import timeit
from dataclasses import replace

from gyre.core.plan import Plan
from gyre.core.scheduler import scheduler
from schemas.dispatch import LaunchGranted
from tests.core.world import launched, registered, run_started, terminated

PLAN = Plan(
    steps=100,
    groups=16,
    executions=16,
    phi=0.5,
    mu=2,
    rho_min=0.5,
    tau_seconds=1,
    cells=8,
    tasks=("a",),
    seed=0,
    order_seed=0,
)


def test_neither_the_scheduler_nor_the_configuration_imports_torch_or_the_bus() -> None:
    code = (
        "import sys, gyre.core.scheduler, gyre.core.routes, gyre.core.staleness, gyre.config;"
        "print([name for name in ('torch', 'numpy', 'nats', 'bus', 'services') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_a_decision_with_200_active_executions_takes_less_than_a_third_of_a_millisecond() -> None:
    cells = (registered(index, f"i{index}", capacity=25) for index in range(8))
    story = scheduler(PLAN).given(run_started(), *cells).settle()
    granted = [event.execution for _, event in story.log if isinstance(event, LaunchGranted)]
    story = story.when(*(launched(execution) for execution in granted))
    assert story.state.dispatch.running == 200
    busy = story.when(terminated("x0-3")).state
    for state in (story.state, busy, replace(busy, steps=1)):
        best = min(timeit.repeat(lambda state=state: story.decider.decide(state), number=20, repeat=10)) / 20  # type: ignore[misc]
        assert best < 0.3e-3
