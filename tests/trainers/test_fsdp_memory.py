"""What ranks hold, and when they let go of it: measured from outside, and after the trainer was killed."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.rl.algorithms.port import Settings
from gyre.trainers.fsdp.trainer import FsdpTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.ranked import RankedTrainer
from tests import tiny
from tests.trainers.batch import micro_step
from tests.trainers.test_gradient import everything

pytestmark = pytest.mark.timeout(300)
RANKS = 2


def large_model() -> Any:
    """The tiny one, but for its width: 64 MB of parameters stand out from what a process holds anyway."""
    return tiny.llama(1, hidden_size=512, intermediate_size=4096, initializer_range=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "large"
    large_model().save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def part(folder: Path) -> int:
    """Bytes of a rank's share of the parameters."""
    return (folder / "model.safetensors").stat().st_size // RANKS


def make(folder: Path) -> FsdpTrainer:
    how: dict[str, Any] = {"share_prefixes": True, "activation_bytes": 1 << 30}
    return FsdpTrainer(folder, 1.0, Settings(), AdamSettings(), Ranks(RANKS, "gloo"), **how)


@pytest.fixture
def trainer(folder: Path) -> Iterator[FsdpTrainer]:
    made = make(folder)
    yield made
    made.close()


def held(trainer: RankedTrainer) -> list[int]:
    """Bytes in RAM that are each rank's own, not a file's, once it has given back what it freed for the last answer."""
    for _ in range(2):
        trainer.zero()
    return [
        1024 * int(line.split()[1])
        for each in trainer.processes
        for line in Path(f"/proc/{each}/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    ]


def grown(before: list[int], after: list[int]) -> list[int]:
    return [now - then for then, now in zip(before, after, strict=True)]


def test_a_rank_holds_no_weights_before_it_takes_its_part_of_a_file(
    trainer: FsdpTrainer, folder: Path, part: int
) -> None:
    before = held(trainer)
    trainer.load(folder / "model.safetensors")
    grew = grown(before, held(trainer))
    assert 0.8 * part < min(grew)
    assert max(grew) < 1.5 * part


def test_moments_are_the_cores_alone_in_parts_and_what_is_released_goes_back(
    trainer: FsdpTrainer, folder: Path, part: int, tmp_path: Path
) -> None:
    trainer.load(folder / "model.safetensors")
    trainer.micro_step(micro_step([everything()[:4], everything()[4:]]))
    satellite = held(trainer)
    saved = trainer.save(tmp_path)  # which only the core does
    core = held(trainer)
    grew = grown(satellite, core)  # by two moments of its own part; whole ones would be four parts
    assert part < min(grew)
    assert max(grew) < 3.5 * part
    trainer.release()
    assert min(grown(held(trainer), core)) > 2 * part  # and the parameters
    trainer.restore(tmp_path / saved.weights.address, tmp_path / saved.optimizer.address)
    assert trainer.save(tmp_path) == saved


def main(folder: Path) -> None:
    """Be the process of a trainer; says which its ranks are."""
    sys.stdout.write(" ".join(map(str, make(folder).processes)) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def test_ranks_end_with_the_process_that_started_them_however_that_ended(folder: Path) -> None:
    code = (
        f"from pathlib import Path; from tests.trainers.{Path(__file__).stem} import main; main(Path({str(folder)!r}))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert started.stdin
    assert started.stdout
    with started, started.stdin, started.stdout:
        ranks = [os.pidfd_open(int(each)) for each in started.stdout.readline().split()]
        assert len(ranks) == RANKS
        started.kill()
        for each in ranks:
            assert select.select([each], [], [], 60)[0], "a rank lives on"
            os.close(each)
