"""A whole training whose cells lay their replicas out over ranks of FSDP2."""

import os
import signal
from pathlib import Path

import pytest

from gyre.sandboxes.family import children
from gyre.trainers.nodes import KEY, NODES
from tests.e2e.living import RUN, Command, write_config
from tests.trainers.far import SECRET, node

pytestmark = pytest.mark.timeout(300)


async def test_cells_of_two_ranks_each_train_and_the_log_decides_itself_again(tmp_path: Path) -> None:
    config = write_config(tmp_path, steps=2)
    config.write_text(config.read_text() + '[trainer]\nranks = 2\nbackend = "gloo"\n')
    train = await Command.start("train", config, "--json")
    result = await train.result()
    assert result["steps"] == 2
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    assert max(result["gradient_norms"]) > 0
    assert result["max_delta_log_p_at_equal_weights"] <= 1e-4
    replay = await Command.start("replay", tmp_path / "runs" / RUN, "--verify", "--json")
    assert (await replay.result())["differences"] == []


async def test_ranks_that_are_killed_on_another_machine_cost_their_cells_a_new_start_and_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, steps=2)
    config.write_text(config.read_text() + '[trainer]\nranks = 2\nbackend = "gloo"\n')
    with node(tmp_path) as (first, _), node(tmp_path) as (second, far):
        monkeypatch.setenv(NODES, f"{first},{second}")
        monkeypatch.setenv(KEY, SECRET)
        train = await Command.start("train", config, "--json")
        await train.line(lambda line: line.startswith("step   1"))
        for rank in children(far.pid):
            os.kill(rank, signal.SIGKILL)
        result = await train.result()
    assert result["steps"] == 2
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    log = (tmp_path / "runs" / RUN / "logs" / "cell-0.log").read_text()
    assert f"rank 1 ended with something that {second} has printed" in log
    replay = await Command.start("replay", tmp_path / "runs" / RUN, "--verify", "--json")
    assert (await replay.result())["differences"] == []
