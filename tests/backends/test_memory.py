"""What Megatron's ranks hold, and when they let go of it, measured from outside."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from tests.backends.conftest import SHIMS
from tests.trainers.batch import micro_step
from tests.trainers.test_fsdp_memory import grown, held, large_model
from tests.trainers.test_gradient import everything

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _shims() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]))
        yield


def test_moments_are_the_cores_alone_and_what_is_released_goes_back(tmp_path: Path) -> None:
    large_model().save_pretrained(tmp_path / "large")
    weights = tmp_path / "large" / "model.safetensors"
    part = weights.stat().st_size // 2  # each rank holds half of every layer
    with closing(MegatronTrainer(tmp_path / "large", 1.0, Settings(), AdamSettings(), Ranks(2, 1, "gloo"))) as trainer:
        trainer.load(weights)
        trainer.micro_step(micro_step([everything()]))
        satellite = held(trainer)
        saved = trainer.save(tmp_path)  # which only the core does
        core = held(trainer)
        assert min(grown(satellite, core)) > part  # two moments, of its own part
        trainer.release()
        assert min(grown(held(trainer), core)) > 2 * part  # and the parameters
        trainer.restore(tmp_path / saved.weights.address, tmp_path / saved.optimizer.address)
        assert trainer.save(tmp_path) == saved
