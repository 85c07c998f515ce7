"""Policy version 0: the same file, whoever writes it."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gyre.trainers.checkpoint
import gyre.trainers.mapped
import services.initial
from gyre.models.load import MODELLED, NANO, ModelError, load_model
from gyre.rl.experts import together
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.mapped import mapped
from gyre.trainers.modelled import ModelledTrainer
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.torch import file_state
from schemas.refs import WeightsRef
from services.initial import write_initial
from services.setup import SetupError, initial_weights
from tests import tiny


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


def halved_head() -> Any:
    """A head of its own, in bfloat16."""
    return tiny.llama(2, tie_word_embeddings=False).bfloat16()


def prefixless(folder: Path) -> None:
    """Names as of a model that has no head, which transformers understands too."""
    file = folder / "model.safetensors"
    save_file({name.removeprefix("model."): each for name, each in load_file(file).items()}, file, {"format": "pt"})


def fused(folder: Path) -> None:
    """A mixture's experts as transformers computes with them."""
    file = folder / "model.safetensors"
    save_file(together(load_file(file)), file, {"format": "pt"})


def headed(folder: Path) -> None:
    """The tied head under its own name, too."""
    file = folder / "model.safetensors"
    held = load_file(file)
    save_file({**held, "lm_head.weight": held["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})


def beheaded(folder: Path) -> None:
    """The tied tensor under the head's name alone."""
    file = folder / "model.safetensors"
    held = load_file(file)
    head = held.pop("model.embed_tokens.weight")
    save_file({**held, "lm_head.weight": head}, file, {"format": "pt"})


def more(folder: Path) -> None:
    """A tensor that no model of this kind has."""
    file = folder / "model.safetensors"
    save_file({**load_file(file), "mtp.weight": torch.ones(3)}, file, {"format": "pt"})


def folder_of(model: Any, change: Callable[[Path], None] | None, place: Path, shard: str = "1GB") -> Path:
    """A model's folder in Hugging Face format, as others save it."""
    model.save_pretrained(place, max_shard_size=shard)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(NANO / name, place / name)
    if change:
        change(place)
    return place


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Path], None] | None, str]] = {
    "tied": (lambda: tiny.llama(1), None, "1GB"),
    "untied, half as wide": (halved_head, None, "1GB"),
    "in many files": (lambda: tiny.qwen(3).to(torch.float16), None, "8KB"),
    "names without a prefix": (lambda: tiny.qwen(4), prefixless, "1GB"),
    "under the head's name": (lambda: tiny.llama(5), beheaded, "1GB"),
    "more than it needs": (lambda: tiny.llama(6), more, "1GB"),
    "a mixture": (lambda: tiny.mixture(7).bfloat16(), None, "1GB"),
    "a mixture in many files": (lambda: tiny.mixture(8), None, "8KB"),
    "a mixture's experts together": (lambda: tiny.mixture(9), fused, "1GB"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_never_loaded_as_a_whole_is_written_to_the_byte_as_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, change, shard = MODELS[name]
    own = folder_of(make(), change, tmp_path / "own", shard)
    loaded = save_tensors(file_state(load_model(own)[0])[0], tmp_path / "loaded", "weights")
    monkeypatch.setattr(services.initial, "load_model", None)  # it would break here
    monkeypatch.setattr(gyre.trainers.checkpoint, "_PIECE", 100)
    written = write_initial(tmp_path / "written", str(own))
    assert written == loaded
    pair = [tmp_path / kind / written.address for kind in ("written", "loaded")]
    assert pair[0].read_bytes() == pair[1].read_bytes()


@pytest.mark.parametrize("change", [headed, None], ids=["a tensor under two names", "a model of another kind"])
def test_what_only_transformers_can_tell_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None] | None
) -> None:
    own = folder_of(tiny.llama(1), change, tmp_path / "own")
    if change is None:  # its names are not those of the files
        monkeypatch.setattr(gyre.trainers.mapped, "_namer", lambda *_: lambda key: (f"other.{key}", False))
    assert mapped(own) is None
    assert write_initial(tmp_path, str(own)) == save_tensors(file_state(load_model(own)[0])[0], tmp_path, "weights")


def test_a_damaged_model_is_refused_in_one_line(tmp_path: Path) -> None:
    own = folder_of(tiny.llama(1), None, tmp_path / "own")
    file = own / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"model folder .*; give a complete causal model"):
        write_initial(tmp_path, str(own))


def test_a_process_that_the_kernel_kills_is_said_to_have_lacked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "killed").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "killed"))
    with pytest.raises(SetupError, match=r"model\.path = /m: .* was killed, most likely for memory"):
        initial_weights(tmp_path, "/m")


def test_a_model_of_ones_own_is_read_and_written_as_a_trainer_has_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for file in NANO.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    assert write_initial(tmp_path, str(own)) == trained("nano", tmp_path / "other")
