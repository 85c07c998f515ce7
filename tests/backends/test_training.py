"""A whole run on the cluster's backends: two cells, each with a real SGLang server and two ranks of megatron-core."""

from pathlib import Path

import pytest

from tests.backends.conftest import ARGUMENTS
from tests.backends.runs import agent, gyre, write_run

pytestmark = pytest.mark.timeout(900)


def test_three_elastic_steps_on_servers_and_ranks(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        "both",
        harness=agent(6, 48),
        engine={
            "kind": "sglang",
            "arguments": [*ARGUMENTS, "--mem-fraction-static=0.3", "--hicache-size=1", "--hicache-io-backend=direct"],
            "shared_cache": True,
            "environment": {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
        },
        trainer={"tensor": 2},
        weights={"transport": "group", "backend": "gloo"},
    )
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
