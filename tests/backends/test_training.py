"""A whole run on the cluster's backends: two cells, each with a real SGLang server and two ranks of megatron-core."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends.conftest import ARGUMENTS, ENVIRONMENT, SHIMS

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
HARNESS = ["{python}", "-I", "-S", "{reference}", "--max-turns", "6", "--max-tokens", "48"]
CONFIG = f"""
[run]
name = "both"
steps = 3
[schedule]
groups = 2
executions = 4
mu = 2
phi = 0.5
[cells]
count = 2
concurrency = 8
lost_after_seconds = 60
[tasks]
train = "words:64:train"
heldout = "words:16:heldout"
[evaluation]
episodes = 0
[rollout]
max_tokens = 48
context_tokens = 512
[harness]
command = {json.dumps(HARNESS)}
[packing]
row_tokens = 1024
micro_step_tokens = 1024
share_prefixes = false
[optimizer]
lr = 1e-4
[engine]
kind = "sglang"
arguments = {json.dumps([*ARGUMENTS, "--mem-fraction-static=0.3", "--hicache-size=1", "--hicache-io-backend=direct"])}
shared_cache = true
environment = {{ SGLANG_USE_CPU_ENGINE = "1", OMP_NUM_THREADS = "1" }}
[trainer]
kind = "megatron"
tensor = 2
backend = "gloo"
[weights]
transport = "group"
backend = "gloo"
"""


def gyre(folder: Path, *words: str) -> Any:
    """What a command says at its end, as JSON."""
    paths = os.pathsep.join([str(ROOT), str(SHIMS)])
    done = subprocess.run(
        (sys.executable, "-m", "services.cli", *words, "--json"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths} | {"HF_HUB_OFFLINE": ENVIRONMENT["HF_HUB_OFFLINE"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_three_elastic_steps_on_servers_and_ranks(tmp_path: Path) -> None:
    (tmp_path / "both.toml").write_text(CONFIG)
    result = gyre(tmp_path, "train", "both.toml")
    assert result["dispatched"] == result["launched"] == result["terminated"] == 24
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    assert result["targets_at_equal_weights"] > 50
    assert result["max_delta_log_p_at_equal_weights"] <= 1e-4
    assert max(result["gradient_norms"]) > 0
    assert gyre(tmp_path, "replay", "both", "--verify")["differences"] == []
    logs = {each.name: each.read_text(errors="replace") for each in (tmp_path / "runs" / "both" / "logs").glob("*.log")}
    joined = sum(text.count("init custom process group") for name, text in logs.items() if "sglang" in name)
    assert joined >= 2  # each published version was sent to the engines that served by then ...
    fallen = [line for text in logs.values() for line in text.splitlines() if "does not come by a group" in line]
    assert [line for line in fallen if "no core is known yet" not in line] == []  # ... and nothing else was needed
