"""Live executions never notice that cells change their roles: real harnesses, server, proxy and engines, in small.

`python -m benchmarks.moved_requests` is the same at full size, with figures.
"""

from pathlib import Path

import pytest

from tests.services.judge import judge
from tests.services.stage import as_tasks, config_of, play

EXECUTIONS, WIDTH, SWITCHES = 12, 6, 6


@pytest.mark.timeout(240)
async def test_cells_switch_roles_under_live_executions_that_never_notice(tmp_path: Path) -> None:
    config = config_of(tmp_path, 3, WIDTH, 2.0, "--stream")
    played = await play(config, as_tasks, EXECUTIONS, WIDTH, SWITCHES, 0.0)
    verdict = judge(played, config.cells.heartbeat_seconds)
    assert verdict.problems == []
    assert verdict.executions == EXECUTIONS
    assert verdict.switches >= SWITCHES
    assert verdict.cut > 0
    assert verdict.handoffs
    assert verdict.reused > 0.9, verdict
