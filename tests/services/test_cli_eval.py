"""gyre eval: which weights are measured, in which folder, and how small the run around them is."""

import json
from pathlib import Path

import pytest

from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from gyre.errors import ConfigError
from gyre.models.load import NANO, find_model
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.runs import RunStarted
from schemas.training import WeightsPublished
from services.eval_run import EvaluationFailed, changed, evaluate, last_weights, materialise
from services.place import Place


def weights(version: int) -> WeightsRef:
    return WeightsRef(digest=str(version) * 64, size=1, address=f"weights/{version}.safetensors")


def begin() -> RunStarted:
    config = Config()
    return RunStarted(
        config=config.table(),
        config_digest=config.digest(),
        seed=0,
        code_version="0",
        weights=weights(0),
        tasks=("a",),
        heldout=("b",),
    )


@pytest.mark.parametrize("versions", [(), (2,), (2, 4)])
async def test_the_weights_published_last_are_measured(tmp_path: Path, versions: tuple[int, ...]) -> None:
    bus = await MemoryBus.connect(MemoryBroker(), "r", "reader", "reader-1", tmp_path, create=True)
    published = [WeightsPublished(version=each, weights=weights(each), seconds=0.0) for each in versions]
    said: list[tuple[str, Event]] = [("control", begin()), *(("cell", each) for each in published)]
    for service, event in said:
        place = Place(service, f"{service}-1", "r", tmp_path, "", Config())
        await bus.ev.append(place.subject("core"), place.commit([event], as_of=0, correlation="r"))
    version, _, found = await last_weights(bus.ev)
    assert version == (versions[-1] if versions else 0)
    assert found == weights(version)


async def test_a_log_without_a_beginning_has_no_weights(tmp_path: Path) -> None:
    bus = await MemoryBus.connect(MemoryBroker(), "r", "reader", "reader-1", tmp_path, create=True)
    with pytest.raises(EvaluationFailed):
        await last_weights(bus.ev)


def test_a_model_folder_is_made_of_the_base_model_and_other_weights(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"other weights")
    materialise(NANO, other, tmp_path / "model")
    assert find_model(str(tmp_path / "model")) == tmp_path / "model"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == b"other weights"
    base = {path.name for path in NANO.iterdir() if path.is_file() and ".safetensors" not in path.name}
    assert {path.name for path in (tmp_path / "model").iterdir()} == base | {"model.safetensors"}
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == json.loads(
        (NANO / "config.json").read_text()
    )


def test_overrides_change_what_they_name_and_are_checked() -> None:
    config = changed(Config(), ["evaluation.episodes=3", "rollout.temperature=0.5"])
    assert (config.evaluation.episodes, config.evaluation.concurrency) == (3, Config().evaluation.concurrency)
    assert config.rollout.temperature == 0.5
    for override in ("evaluation.episode=3", "evaluation=3"):
        with pytest.raises(ConfigError, match="evaluation"):
            changed(Config(), [override])


async def test_what_is_neither_run_nor_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationFailed, match="nobody"):
        await evaluate("nobody", tmp_path, 1, ())
