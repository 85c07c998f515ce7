"""What a `config.json` leaves out, or says as older versions did, is trained on real megatron-core ranks as it is."""

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from tests import tiny
from tests.backends.conftest import SHIMS
from tests.trainers import batch
from tests.trainers.batch import CASES, TEMPERATURE, distance, micro_step
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(300)
CLOSE = 1e-4  # relative: another rope base gives 0.009, other weights of experts 1
THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.5}}


def llama() -> Any:
    """Heads of their own keys and values, a head of its own, and another rope base."""
    return tiny.llama(7, num_key_value_heads=4, tie_word_embeddings=False, **THETA)


def mixture() -> Any:
    """Its router's weights are not normed again."""
    return tiny.mixture(8, norm_topk_prob=False, **THETA)


@pytest.mark.parametrize("make", [llama, mixture])
def test_what_a_config_leaves_out_is_as_in_transformers(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]))
    model = make()
    model.save_pretrained(tmp_path)
    default = type(model.config)().to_dict()
    said = {"num_key_value_heads": 4} if make is llama else {}  # the default is as many as there are heads
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"rope_theta": 50.5}
    left_out = {"rope_parameters", *said, *(name for name, each in default.items() if config.get(name) == each)}
    assert {"rms_norm_eps", "hidden_act", "tie_word_embeddings"} <= left_out
    file.write_text(json.dumps({name: each for name, each in config.items() if name not in left_out - {"model_type"}}))

    with closing(MegatronTrainer(tmp_path, TEMPERATURE, Settings(), AdamSettings(), Ranks(1, 1, "gloo"))) as made:
        made.load(tmp_path / "model.safetensors")
        made.micro_step(micro_step([[segment for case in CASES for segment in batch.segments(case, make)]]))
        assert distance(made.gradient, batch.expected(CASES, make).gradient) < CLOSE
