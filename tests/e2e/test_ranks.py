"""A whole training whose cells lay their replicas out over ranks of FSDP2."""

from pathlib import Path

import pytest

from tests.e2e.living import RUN, Command, write_config

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
