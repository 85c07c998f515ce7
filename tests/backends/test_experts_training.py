"""A whole run of a mixture of experts: two cells, each a real SGLang server and two ranks of megatron-core.

What a token took in the engine it takes again in training. The model is a tiny one with random weights, which is
rewarded by the checksum of what it says: rewards differ, so that there is something to train on.
"""

import json
import shutil
from pathlib import Path

import pytest

from gyre.models.load import NANO
from tests.backends.conftest import ARGUMENTS
from tests.backends.mixtures import make_mixture, save
from tests.backends.runs import gyre, write_run

pytestmark = pytest.mark.timeout(900)
TASK = {
    "task.toml": 'version = "1.0"\n\n[metadata]\nname = "say"\n\n[agent]\ntimeout_sec = 300.0\n',
    "instruction.md": "Say a word, and another one.\n",
    "environment/notes.txt": "nothing\n",
    "tests/test.sh": '#!/bin/sh\nset -- $(cksum <answer.txt)\necho "0.$(($1 % 10))" >"$REWARD_FILE"\n',
}


def write_mixture(folder: Path, model: Path, tasks: Path) -> Path:
    """Routing replay needs an engine that tells experts: a server a cell."""
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    return write_run(
        folder,
        "mixture",
        model={"path": str(model)},
        tasks={"train": str(tasks), "heldout": str(tasks)},
        rollout={"max_tokens": 32, "tool_parser": "none"},
        harness={"command": ["{python}", "-I", "-S", str(Path(__file__).parent / "two_turns.py")]},
        engine={"kind": "sglang", "arguments": [*ARGUMENTS, "--mem-fraction-static=0.3"], "environment": environment},
        trainer={"tensor": 2, "expert": 2},
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With nano's tokenizer."""
    vocabulary = json.loads((NANO / "config.json").read_text())["vocab_size"]
    folder = save(make_mixture(3, vocabulary=vocabulary, eos_token_id=2), tmp_path / "model")
    for name in ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, folder / name)
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name, text in TASK.items():
        file = tmp_path / "tasks" / "say" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "tasks" / "say" / "tests" / "test.sh").chmod(0o755)
    return tmp_path / "tasks"


def test_three_elastic_steps_take_again_the_experts_that_engines_took(tmp_path: Path, model: Path, tasks: Path) -> None:
    write_mixture(tmp_path, model, tasks)
    result = gyre(tmp_path, "train", "mixture.toml")
    assert result["dispatched"] == result["launched"] == result["terminated"] == 24
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    assert result["targets_at_equal_weights"] > 50
    assert result["max_delta_log_p_at_equal_weights"] <= 1e-4
    assert result["expert_choices_at_equal_weights"] > 100
    assert result["expert_overlap_at_equal_weights"] == result["expert_top_at_equal_weights"] == 1.0
    assert max(result["gradient_norms"]) > 0
    assert gyre(tmp_path, "replay", "mixture", "--verify")["differences"] == []
