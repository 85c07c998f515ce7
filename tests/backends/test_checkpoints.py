"""Optimizer state in Megatron's distributed format: other ranks go on from it, a crash leaves the whole or none."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from gyre.rl.algorithms.port import Settings
from gyre.trainers.checkpoint import locate, prune, spare
from gyre.trainers.manifest import Manifest
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import Saved, Trainer, WeightsRefused
from tests.backends.conftest import SHIMS
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture
from tests.trainers.test_gradient import wanted

pytestmark = pytest.mark.timeout(300)
ADAM = AdamSettings(learning_rate=1e-3)
LIKE = {"rtol": 1e-6, "atol": 1e-9}


@pytest.fixture(scope="module", autouse=True)
def _shims() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    batch.tiny_model().save_pretrained(folder)
    return folder


def make(model: Path, tensor: int, pipeline: int, **more: Any) -> MegatronTrainer:
    ranks = Ranks(tensor, pipeline, "gloo", **more)
    return MegatronTrainer(model, TEMPERATURE, Settings(), ADAM, ranks)


@pytest.fixture(scope="module")
def trainer(model: Path) -> Iterator[MegatronTrainer]:
    """Of tensor parallel ranks, that saves in the distributed format."""
    made = make(model, 2, 1, checkpoint="distributed")
    yield made
    made.close()


@pytest.fixture(scope="module")
def gradient() -> torch.Tensor:
    return torch.from_numpy(wanted().gradient).float()


@dataclass(frozen=True)
class Run:
    """A run folder with a checkpoint after two updates, at position 77 of its log, and the weights after the third."""

    folder: Path
    saved: Saved
    third: Path

    def restore(self, trainer: MegatronTrainer) -> None:
        """As a cell does it: what the log names is looked at first."""
        trainer.restore(locate(self.folder, self.saved.weights), locate(self.folder, self.saved.optimizer))


@pytest.fixture(scope="module")
def run(trainer: MegatronTrainer, model: Path, gradient: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    trainer.load(model / "model.safetensors")
    for step in (1, 2):
        trainer.apply(gradient * step)
    saved = trainer.save(folder, 77)
    trainer.apply(gradient * 3)
    return Run(folder, saved, folder / "third" / trainer.save(folder / "third", 78).weights.address)


def test_it_is_megatrons_own_format_with_the_log_position_inside(run: Run) -> None:
    folder = locate(run.folder, run.saved.optimizer)
    found = Manifest.read(folder)
    found.check(folder)
    assert (found.sequence, found.updates) == (77, 2)
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "metadata.json", "common.pt"} == set(found.files)
    assert json.loads((folder / "metadata.json").read_text())["sharded_backend"] == "torch_dist"
    names = FileSystemReader(folder).read_metadata().state_dict_metadata
    assert "optimizer.state.exp_avg_sq.decoder.layers.self_attention.linear_qkv.weight" in names
    assert torch.load(folder / "common.pt") == {"iteration": 2, "log_sequence": 77}
    assert run.saved.optimizer.size == sum(each.stat().st_size for each in folder.iterdir() if each.name in found.files)


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (1, 2), (2, 1)])
def test_ranks_laid_out_otherwise_make_the_same_next_update(
    tensor: int, pipeline: int, run: Run, model: Path, gradient: torch.Tensor, tmp_path: Path
) -> None:
    with closing(make(model, tensor, pipeline)) as other:
        run.restore(other)
        other.apply(gradient * 3)
        found = other.save(tmp_path)  # whole: what one format holds, the other takes
    third = load_file(run.third)
    updated = load_file(tmp_path / found.weights.address)
    assert all(torch.allclose(each, third[name], **LIKE) for name, each in updated.items())
    assert int(load_file(tmp_path / found.optimizer.address)["updates"]) == 3


def test_ranks_that_take_rows_side_by_side_each_keep_some_of_the_moments(
    run: Run, model: Path, gradient: torch.Tensor, tmp_path: Path
) -> None:
    with closing(make(model, 1, 1, data=2, checkpoint="distributed")) as other:
        run.restore(other)
        found = other.save(tmp_path, 77)
        other.apply(gradient * 3)
        updated = load_file(tmp_path / other.save(tmp_path, 78).weights.address)
    assert found.weights == run.saved.weights
    files = Manifest.read(locate(tmp_path, found.optimizer)).files
    parts = sorted(each.size for name, each in files.items() if name.startswith("__"))
    assert len(parts) == 2
    assert parts[1] < 2 * parts[0]
    third = load_file(run.third)
    assert all(torch.allclose(each, third[name], **LIKE) for name, each in updated.items())


def test_experts_moments_are_shared_and_found_by_ranks_that_hold_other_experts_otherwise(tmp_path: Path) -> None:
    mixture = batch.tiny_mixture()
    mixture.save_pretrained(tmp_path / "mixture")
    size = sum(each.numel() for each in mixture.parameters())
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(3))
    with closing(make(tmp_path / "mixture", 1, 1, data=2, checkpoint="distributed", grouped=True)) as first:
        first.load(tmp_path / "mixture" / "model.safetensors")
        first.apply(gradient)
        saved = first.save(tmp_path)
        first.apply(gradient * 2)
        expected = load_file(tmp_path / first.save(tmp_path).weights.address)
    layouts: list[dict[str, Any]] = [{"data": 2, "expert": 2}, {"grouped": True}]
    for layout in layouts:
        with closing(make(tmp_path / "mixture", 1, 1, **layout)) as other:
            other.restore(tmp_path / saved.weights.address, tmp_path / saved.optimizer.address)
            other.apply(gradient * 2)
            found = load_file(tmp_path / other.save(tmp_path).weights.address)
        assert all(torch.allclose(each, expected[name], **LIKE) for name, each in found.items())


def test_a_mixtures_files_go_from_the_torch_trainer_to_ranks_and_back(tmp_path: Path) -> None:
    mixture = batch.tiny_mixture()
    mixture.save_pretrained(tmp_path / "mixture")
    size = sum(each.numel() for each in mixture.parameters())
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(3))
    single = batch.trainer(adam=ADAM, model=mixture)
    with closing(make(tmp_path / "mixture", 1, 1, data=2, expert=2)) as ranks:
        single.apply(gradient)
        ways: list[tuple[Trainer, Trainer]] = [(single, ranks), (ranks, single)]
        for step, (writer, reader) in enumerate(ways):
            saved = writer.save(tmp_path)
            reader.restore(tmp_path / saved.weights.address, tmp_path / saved.optimizer.address)
            assert reader.save(tmp_path) == saved
            for each in (writer, reader):
                each.apply(gradient * (step + 2))
            mine, theirs = writer.save(tmp_path), reader.save(tmp_path)
            for one, other in ((mine.weights, theirs.weights), (mine.optimizer, theirs.optimizer)):
                found, expected = (load_file(tmp_path / each.address) for each in (one, other))
                assert found.keys() == expected.keys()
                assert all(torch.allclose(each, expected[name], **LIKE) for name, each in found.items())


def test_what_is_damaged_is_refused_and_the_trainer_is_as_before(
    trainer: MegatronTrainer, run: Run, tmp_path: Path
) -> None:
    before = trainer.save(tmp_path, 1).weights
    part = run.folder / run.saved.optimizer.address / "__1_0.distcp"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(WeightsRefused, match=r"__1_0\.distcp: digest .* the file is damaged"):
        run.restore(trainer)
    part.write_bytes(whole[:-1])
    with pytest.raises(WeightsRefused, match="bytes, the manifest says"):
        run.restore(trainer)
    part.write_bytes(whole)
    assert trainer.save(tmp_path, 1).weights == before
    run.restore(trainer)
    assert trainer.save(tmp_path, 77).weights == run.saved.weights


def test_another_models_state_is_refused(trainer: MegatronTrainer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_shapes", dict(trainer._shapes) | {"model.norm.weight": (64,)})
    with pytest.raises(WeightsRefused, match="belongs to another model"):
        run.restore(trainer)


SAVING = """
import sys
from pathlib import Path
from typing import Any
from tests.backends.test_checkpoints import make
model, run = Path(sys.argv[1]), Path(sys.argv[2])
trainer = make(model, 2, 1, checkpoint="distributed")
trainer.load(model / "model.safetensors")
for sequence in range(1, 1000):
    trainer.save(run, sequence)
    sys.stdout.write(" ".join(map(str, trainer.processes)) + "\\n")
    sys.stdout.flush()
"""


def writing(home: Path) -> bool:
    """Whether a rank has begun to write its part of a checkpoint."""
    return any(True for _ in home.glob("*.tmp/__*"))


def test_a_crash_in_a_save_leaves_whole_checkpoints_only(model: Path, tmp_path: Path) -> None:
    home = tmp_path / "optimizer"
    started = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(model), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout
    with started, started.stdout:
        started.stdout.readline()
        ranks = [os.pidfd_open(int(each)) for each in started.stdout.readline().split()]
        while not writing(home):
            assert started.poll() is None
        started.kill()
    for each in ranks:
        assert select.select([each], [], [], 60)[0], "a rank lives on"
        os.close(each)
    whole = [each for each in home.iterdir() if each.suffix != ".tmp"]
    assert len(whole) >= 2
    for folder in whole:
        Manifest.read(folder).check(folder)
    prune(found := spare(tmp_path, []))
    assert len(found) > len(whole)
    assert list(home.iterdir()) == []
