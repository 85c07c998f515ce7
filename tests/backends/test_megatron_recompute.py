"""Layers that Megatron's ranks compute again: the same gradient, by the experts that they took, in less memory."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron import trainer as megatron
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import Finished
from gyre.trainers.ranks import RankLost, RankProcesses
from schemas.base import pack_floats, pack_ints
from schemas.training import Segment
from tests.backends.conftest import SHIMS
from tests.backends.test_experts_trainer import everything, read, told
from tests.backends.test_pipeline import deep_model, rest, stepwise
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance, micro_step
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(300)
ALL = 1 << 40
"""Bytes of activations that no row here exceeds."""
MIXTURES = {
    "one rank": Ranks(1, 1, "gloo"),
    "tensor 2 x expert 2": Ranks(2, 1, "gloo", expert=2),
    "data 2 x expert 2": Ranks(1, 1, "gloo", data=2, expert=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    batch.tiny_mixture().save_pretrained(made / "mixture")
    deep_model().save_pretrained(made / "deep")
    return made


@pytest.fixture(scope="module", autouse=True)
def _shims() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]))
        yield


def start(model: Path, ranks: Ranks, activation_bytes: int) -> MegatronTrainer:
    ranks = replace(ranks, activation_bytes=activation_bytes)
    made = MegatronTrainer(model, TEMPERATURE, Settings(), AdamSettings(), ranks, read_experts=read)
    made.load(model / "model.safetensors")
    return made


def of_a_mixture(trainer: MegatronTrainer) -> tuple[torch.Tensor, list[Finished]]:
    """Experts told, other ones than the routers would choose, and left to the routers; rows of unequal length."""
    parts = everything()
    told_ones = told(parts[:8], shift=2)
    rows = [[*told_ones[:3], parts[9]], *[[each] for each in told_ones[3:]], parts[8:]]
    found = trainer.micro_step(micro_step(rows))
    return trainer.gradient, [found]


@pytest.mark.parametrize("ranks", MIXTURES.values(), ids=MIXTURES)
def test_experts_are_taken_again_and_the_gradient_is_the_same(ranks: Ranks, folder: Path) -> None:
    with closing(start(folder / "mixture", ranks, ALL)) as trainer:
        wanted, stats = of_a_mixture(trainer)
    with closing(start(folder / "mixture", ranks, 0)) as trainer:
        found, again = of_a_mixture(trainer)
    assert wanted.any()
    assert distance(found, wanted.double().numpy()) < 1e-6
    assert again == stats


def test_a_pipeline_that_rests_has_the_same_gradient(folder: Path) -> None:
    found = []
    for each in (ALL, 300_000, 0):  # the second: of long rows some layers, and core attention alone, is computed again
        with closing(start(folder / "deep", Ranks(1, 2, "gloo"), each)) as trainer:
            for number, enqueued in enumerate(stepwise()):
                trainer.begin(enqueued)
                if number in (0, 3):
                    rest(trainer)
            trainer.drain()
            found.append(trainer.gradient)
    assert found[0].any()
    assert max(distance(each, found[0].double().numpy()) for each in found[1:]) < 1e-6


class Faulty(RankProcesses):
    """Ranks of `tests.backends.faulty_rank`."""

    def __init__(self, module: str, orders: Sequence[object], threads: int) -> None:
        super().__init__("tests.backends.faulty_rank", orders, threads)


@pytest.mark.parametrize(
    ("fault", "budget", "said"),
    [
        ("lost", 0, "nothing tells which experts it took"),
        ("shifted", 0, "with the experts of other tokens"),
        ("left over", ALL, "without taking its experts again"),
    ],
)
def test_a_way_back_by_other_experts_ends_the_rank(
    fault: str, budget: int, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(megatron, "RankProcesses", Faulty)
    monkeypatch.setenv("GYRE_FAULT", fault)
    trainer = start(folder / "mixture", Ranks(1, 1, "gloo"), budget)
    with closing(trainer), pytest.raises(RankLost, match="rank 0 ended"):
        of_a_mixture(trainer)
    assert said in capfd.readouterr().err


def test_a_rank_that_is_killed_while_it_computes_again_ends_the_trainer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron, "RankProcesses", Faulty)
    monkeypatch.setenv("GYRE_FAULT", "killed")
    trainer = start(folder / "mixture", Ranks(2, 1, "gloo", expert=2), 0)
    ranks = trainer.processes
    with closing(trainer), pytest.raises(RankLost, match=r"rank [01] ended"):
        of_a_mixture(trainer)
    assert not any(Path(f"/proc/{each}").exists() for each in ranks)


def long_row(tokens: int) -> Segment:
    ids = np.random.default_rng(3).integers(0, batch.VOCABULARY, tokens)
    target = np.zeros(tokens, np.uint8)
    target[-8:] = 1
    return Segment(
        execution="long",
        leaf="only",
        ids=pack_ints(ids.tolist()),
        target=target.tobytes(),
        logprobs=pack_floats(np.full(tokens, -4.0).tolist()),
        advantage=-1.0,
        weight=1.0,
    )


def many_layers() -> Any:
    """Twelve narrow ones: what they keep of a long row stands out from what one of them takes for a moment."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=batch.VOCABULARY, num_hidden_layers=12, **sizes))  # type: ignore[arg-type]


def peak(trainer: MegatronTrainer, row: Segment) -> int:
    """Bytes that the rank grows by at most while it trains on a row."""
    (process,) = trainer.processes
    status = Path(f"/proc/{process}/status")

    def now(field: str) -> int:
        return next(1024 * int(each.split()[1]) for each in status.read_text().splitlines() if each.startswith(field))

    trainer.micro_step(micro_step([[row]]))
    trainer.zero()
    Path(f"/proc/{process}/clear_refs").write_text("5")
    before = now("VmRSS")
    trainer.micro_step(micro_step([[row]]))
    return now("VmHWM") - before


def test_what_a_rank_takes_for_a_row_follows_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,024 tokens each layer keeps 19 MB: 16.8 MB in core attention (4 heads x 4 bytes x 1,024^2), and 2.3 MB."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # what is freed goes back at once, and is not counted
    many_layers().save_pretrained(tmp_path)
    found = []
    for budget in (ALL, 40_000_000, 0):
        with closing(start(tmp_path, Ranks(1, 1, "gloo"), budget)) as trainer:
            found.append(peak(trainer, long_row(1024)))
    kept, lean, least = found
    assert 0.8 * 12 * 16.8e6 < kept - lean < 1.2 * 12 * 16.8e6
    assert 0.5 * 11 * 2.3e6 < lean - least < 1.5 * 11 * 2.3e6
