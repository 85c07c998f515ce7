"""docs/evaluators.md: its settings exist, and its recipe is one."""

import re
import tomllib
from pathlib import Path

from gyre.config import Config
from tests.evaluators.conftest import Work

PAGE = (Path(__file__).parents[2] / "docs/evaluators.md").read_text()


def block(language: str) -> str:
    """The page's first block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_every_setting_on_the_page_exists() -> None:
    chosen = Config.of(tomllib.loads(block("toml"))).evaluator
    assert (chosen.kinds, chosen.sandbox, chosen.judge.model) == (("tests", "judge"), "bubblewrap", "judge-1")


async def test_the_recipe_gives_nothing_to_work_that_ends_its_tests(work: Work) -> None:
    work.leaves(work_sh="kill -9 $PPID; exit 0", out="5")
    assert (await work.verdict(work.task(block("sh")))).score == 0.0
    work.leaves(work_sh="exit 0", out="4")
    assert (await work.verdict(work.task(block("sh")))).score == 1.0
