"""Real trainings with cells and scheduler killed in them, small: benchmarks/ledger_fire.py is the whole thing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
COMMAND = Path(__file__).parents[2] / "benchmarks" / "ledger_fire.py"
NEVER = "1000"


def fire(*options: str) -> dict[str, Any]:
    """What the benchmark finds with these options."""
    command = [sys.executable, str(COMMAND), "--cells", "2", "--groups", "2", "--core-kills", "0", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout or "") + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_random_kills_and_a_core_that_dies_around_its_update_leave_every_update_as_it_was() -> None:
    points = "reduced,stepped,committed"
    found = fire("--steps", "4", "--interval", "7", "--failpoints", points)
    assert found["gradients_apart"] < 1e-5
    assert found["update_apart"] < 1e-2
    assert found["kills"] > 0


def test_a_dispatch_a_claim_and_a_publication_that_are_cut_in_half_are_finished() -> None:
    points = "half_dispatched,claimed,completed,half_published"
    found = fire("--steps", "2", "--interval", NEVER, "--failpoints", points)
    assert found["steps"] == 2
    assert found["gradients_apart"] < 1e-5
