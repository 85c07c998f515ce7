"""Policy version 0: the same file, whoever writes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from gyre.models.load import MODELLED, NANO, load_model
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.modelled import ModelledTrainer
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.torch import file_state
from schemas.refs import WeightsRef
from services.initial import write_initial


def trained(model: str, folder: Path) -> WeightsRef:
    """What a trainer writes of it."""
    if model == MODELLED:
        trainer = ModelledTrainer(AdamSettings(learning_rate=1.0), batch_seconds=0.0, update_seconds=0.0)
        return trainer.save(folder).weights
    return save_tensors(file_state(load_model(NANO)[0])[0], folder, "weights")


@pytest.mark.parametrize("model", ["nano", MODELLED])
def test_version_0_is_what_a_trainer_would_save_though_it_is_written_without_torch(tmp_path: Path, model: str) -> None:
    code = (
        "import sys; from pathlib import Path; from services.initial import write_initial;"
        f"print(write_initial(Path({str(tmp_path)!r}), {model!r}).model_dump_json());"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reference = WeightsRef.model_validate_json(done.stdout)
    assert reference == trained(model, tmp_path / "other")
    assert (tmp_path / reference.address).stat().st_size == reference.size


def test_a_model_of_ones_own_is_read_and_written_as_a_trainer_has_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for file in NANO.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    assert write_initial(tmp_path, str(own)) == trained("nano", tmp_path / "other")
