"""Ranks of megatron-core that other machines start."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from gyre.rl.algorithms.port import Settings
from gyre.sandboxes.family import children
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.nodes import KEY, NODES
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.ranks import RankLost
from tests.backends.conftest import SHIMS
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance, micro_step
from tests.trainers.far import SECRET, node
from tests.trainers.test_gradient import CLOSE, everything, wanted

pytestmark = pytest.mark.timeout(300)


def test_ranks_of_two_machines_share_each_layer_and_a_lost_one_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "tiny"
    batch.tiny_model().save_pretrained(model)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]))
    with node(tmp_path) as (first, one), node(tmp_path) as (second, two):
        monkeypatch.setenv(NODES, f"{first},{second}")
        monkeypatch.setenv(KEY, SECRET)
        made = MegatronTrainer(model, TEMPERATURE, Settings(), AdamSettings(), Ranks(tensor=2, backend="gloo"))
        with closing(made) as trainer:
            assert [len(children(each.pid)) for each in (one, two)] == [1, 1]
            trainer.load(model / "model.safetensors")
            trainer.micro_step(micro_step([[each] for each in everything()]))
            assert distance(trainer.gradient, wanted().gradient) < CLOSE
            (far,) = children(two.pid)
            os.kill(far, 9)
            with pytest.raises(RankLost, match=f"rank 1 ended with something that {second} has printed"):
                trainer.micro_step(micro_step([everything()[:1]]))
