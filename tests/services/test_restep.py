"""`gyre restep RUN STEP`: a recorded step comes out as it was recorded, or under other settings as these say."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bus.archive import export
from bus.archive_log import ArchiveLog, open_archive
from gyre.config import Config
from gyre.errors import ConfigError
from services.exits import EXIT_DIFFERS
from services.reexecute import ReexecutionError
from services.restep import settings_of
from tests.services.conftest import Gyre, refusal
from tests.services.recorded import SMALL


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors are computed fastest by one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def redone(gyre: Gyre, *arguments: object) -> dict[str, Any]:
    result = gyre("restep", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_first_step_comes_out_as_it_was_recorded_from_the_archive_alone(gyre: Gyre) -> None:
    found = redone(gyre, SMALL, 1)
    assert found["differences"] == []
    assert found["gradients_apart"] < 1e-5
    assert found["groups"] == ["g0", "g1", "g2", "g3"]
    now, then = found["recomputed"], found["recorded"]
    assert now["loss"] == pytest.approx(then["loss"], rel=1e-5)
    assert (now["targets"], now["masked"], now["executions"]) == (440, 0, 16)
    assert len(found["executions"]) == 16


def test_a_later_step_is_done_after_those_before_it(gyre: Gyre) -> None:
    found = redone(gyre, SMALL, 2, "--from-start")
    assert (found["differences"], found["at"], found["recomputed"]["masked"]) == ([], "own", 7)


def test_the_settings_of_the_record_give_the_record_though_the_batch_is_made_anew(gyre: Gyre) -> None:
    found = redone(gyre, SMALL, 1, "--set", "objective.ratio_high=1.005")
    assert found["gradients_apart"] < 1e-5
    assert found["recomputed"]["loss"] == pytest.approx(found["recorded"]["loss"], rel=1e-5)
    assert found["recomputed"]["clip_coefficient"] == pytest.approx(found["recorded"]["clip_coefficient"], rel=1e-5)
    assert (found["settings"], found["differences"]) == (["objective.ratio_high=1.005"], [])


def test_another_estimator_gives_other_advantages_and_another_gradient(gyre: Gyre) -> None:
    found = redone(gyre, SMALL, 1, "--set", "objective.advantage=mean", "--set", "optimizer.clip=0.1")
    advantages = {each["execution"]: each["advantage"] for each in found["executions"]}
    assert advantages["x0-0"] == pytest.approx(0.5)  # rewards of g0: 1, 0, 0, 1
    assert advantages["x0-1"] == pytest.approx(-0.5)
    assert found["gradients_apart"] > 0.1
    norm = found["recomputed"]["gradient_norm"]
    assert norm < found["recorded"]["gradient_norm"]
    assert found["recomputed"]["clip_coefficient"] == pytest.approx(0.1 / norm)
    text = gyre("restep", SMALL, 1, "--set", "objective.name=grpo").stdout
    assert "under objective.name=grpo" in text
    assert "gradient norm" in text


class Altered:
    """A log of an archive with one text in it replaced by another of its length."""

    def __init__(self, log: ArchiveLog, change: Callable[[bytes], bytes]) -> None:
        self._log, self._change = log, change

    async def head(self) -> int:
        return await self._log.head()

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        async for sequence, subject, data in self._log.raw():
            yield sequence, subject, self._change(data)


async def alter(path: Path, old: bytes, new: bytes) -> None:
    """Write the recorded run, whose log says something else."""
    with open_archive(SMALL) as archive:
        change = Altered(archive.ev, lambda data: data.replace(old, new))
        await export(path, archive.run, change, archive.calls, archive.blobs)


def test_what_was_recorded_wrongly_is_told_and_the_exit_code_says_so(gyre: Gyre, tmp_path: Path) -> None:
    lied = tmp_path / "lied.jsonl.zst"
    asyncio.run(alter(lied, b'"gradient_norm":0.93266', b'"gradient_norm":0.83266'))
    result = gyre("restep", lied, 1)
    assert result.exit_code == EXIT_DIFFERS, result.output
    assert "step 1: gradient norm 0.93266" in result.stdout
    found = redone(gyre, lied, 1, "--tolerance", 0.5)
    assert found["differences"] == []


def test_weights_that_are_gone_are_one_line_with_the_way_out(gyre: Gyre) -> None:
    line = refusal(gyre("restep", SMALL, 2))
    assert "run.keep_weights = all" in line
    assert "--from-start" in line
    assert "4 steps were committed" in refusal(gyre("restep", SMALL, 9))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.steps=3", "fixed but for objective."),
        ("objective.ratio_high=0.5", "ratio_low <= 1 <= ratio_high"),
        ("objective.advantage=luck", "objective.advantage"),
        ("objective.nothing=1", "unknown key"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(gyre: Gyre, override: str, words: str) -> None:
    assert words in refusal(gyre("restep", SMALL, 1, "--set", override))


def test_other_settings_are_tried_at_recorded_weights_alone(gyre: Gyre) -> None:
    line = refusal(gyre("restep", SMALL, 2, "--from-start", "--set", "objective.advantage=mean"), code=2)
    assert "without --set" in line


def test_another_algorithm_brings_its_bounds_unless_told_otherwise() -> None:
    assert settings_of(Config(), ["objective.name=grpo"]).objective.ratio_high > 1.1
    assert settings_of(Config(), ["objective.name=grpo", "objective.ratio_high=1.05"]).objective.ratio_high == 1.05
    assert settings_of(Config(), ["objective.advantage=median"]).objective.ratio_high == 1.005
    with pytest.raises(ConfigError, match=r"objective\.name"):
        settings_of(Config(), ["objective.name=luck"])
    with pytest.raises(ReexecutionError, match="nothing to set otherwise"):
        settings_of(Config.of({"model": {"path": "modelled"}}), ["objective.name=grpo"])
