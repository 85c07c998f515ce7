"""Data parallel over cells: two Megatron cells that share a batch's micro-steps sum to the gradient of one."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import LedgerBroken
from gyre.trainers.reduction import Reducer, checked_sum
from schemas.training import Contribution, ReductionOpened
from tests.backends.conftest import SHIMS
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture
from tests.trainers.test_gradient import split_steps, wanted

pytestmark = pytest.mark.timeout(300)
LAYOUTS = [((1, 1), (1, 1)), ((1, 2), (1, 2)), ((2, 1), (1, 2))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    batch.tiny_model().save_pretrained(folder)
    return folder


@pytest.fixture(params=LAYOUTS, ids=lambda each: " and ".join("{} x {}".format(*one) for one in each))
def cells(request: pytest.FixtureRequest, model: Path) -> Iterator[list[MegatronTrainer]]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")])
    made = [
        MegatronTrainer(model, TEMPERATURE, Settings(), AdamSettings(), Ranks(tensor, pipeline, "gloo"))
        for tensor, pipeline in request.param
    ]
    for each in made:
        each.load(model / "model.safetensors")
    yield made
    for each in made:
        each.close()


def test_two_cells_sum_to_the_gradient_of_one(cells: list[MegatronTrainer], tmp_path: Path) -> None:
    steps = split_steps([batch.trainer()])
    held: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for number, each in enumerate(steps):
        cells[number % 2].begin(each)
        held[number % 2][each.micro_step] = number + 1
    for cell in cells:
        cell.drain()
    opened = ReductionOpened(
        step=1,
        epoch=1,
        members=(0, 1),
        instances=("a", "b"),
        contributions=tuple(
            Contribution(micro_step=each.micro_step, cell=number % 2, claim=number + 1)
            for number, each in enumerate(steps)
        ),
    )
    sums = summed(tmp_path, cells, opened, held)
    assert torch.equal(*sums)
    assert distance(sums[0], wanted().gradient) < 1e-5
    with pytest.raises(LedgerBroken, match="is in the members' gradients 0 times"):
        summed(tmp_path, cells, opened.model_copy(update={"epoch": 2}), (held[0], {}))


def summed(
    folder: Path, cells: list[MegatronTrainer], opened: ReductionOpened, held: tuple[dict[int, int], dict[int, int]]
) -> list[torch.Tensor]:
    """What each cell gets, both at once."""

    def share(index: int) -> torch.Tensor:
        reducer = Reducer(folder, index, opened.instances[index], 30.0)
        return checked_sum(reducer, opened, cells[index].gradient, held[index])

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(share, range(2)))
