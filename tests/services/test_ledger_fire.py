"""A real training under failpoints and random kills, small: benchmarks/ledger_fire.py is the whole thing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from services.failpoints import Failpoint

COMMAND = Path(__file__).parents[2] / "benchmarks" / "ledger_fire.py"
OPTIONS = "--cells 2 --groups 4 --steps 6 --interval 2 --kills 1 --core-kills 0 --json"


@pytest.mark.timeout(300)
def test_processes_that_die_at_every_named_point_and_at_random_leave_every_update_as_it_was() -> None:
    done = subprocess.run([sys.executable, COMMAND, *OPTIONS.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout or "") + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["steps"] == 6
    assert found["gradients_apart"] < 1e-5
    assert found["update_apart"] < 1e-2
    assert set(found["failpoints"]) == set(get_args(Failpoint))
