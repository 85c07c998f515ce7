"""gyre tasks screen: real rollouts of the shipped model, gone on with, and an index that a run can be trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.config import Config
from gyre.tasks.folder import TaskError
from gyre.tasks.sources import bring, examine
from services.check import check_config
from services.tasks.screen import Screening, Wish
from tests.services.conftest import Gyre, refusal
from tests.tasks.layouts import swe_folder

WORDS = "words:2:train"


def wish(folder: Path, **fields: Any) -> Wish:
    return Wish(**{"source": WORDS, "model": "nano", "rollouts": 4, "index": folder / "i.json", **fields})


def written(folder: Path, scores: dict[str, list[float]], **fields: Any) -> Path:
    asked = wish(folder, **fields)
    Screening(asked, scores).write()
    return asked.index


@pytest.mark.timeout(400)
def test_a_second_call_goes_on_where_the_first_one_ended(gyre: Gyre, tmp_path: Path) -> None:
    index = tmp_path / "i.json"
    words = (
        "tasks",
        "screen",
        WORDS,
        "--model",
        "nano",
        "--index",
        index,
        "--json",
        "--set",
        "evaluation.concurrency=4",
    )
    first = gyre(*words, "--rollouts", "2")
    assert first.exit_code in (0, 1), first.output
    before = json.loads(index.read_text())["scores"]
    assert {name: len(scores) for name, scores in before.items()} == {"train-0000": 2, "train-0001": 2}
    second = json.loads(gyre(*words, "--rollouts", "3").stdout)
    assert {name: scores[:2] for name, scores in second["scores"].items()} == before
    assert {len(scores) for scores in second["scores"].values()} == {3}
    assert all(0.0 <= score <= 1.0 for scores in second["scores"].values() for score in scores)
    again = gyre(*words, "--rollouts", "3")  # all is there: nothing is started
    assert json.loads(again.stdout)["scores"] == second["scores"]


@pytest.mark.timeout(400)
def test_a_rollout_that_left_nothing_to_assess_is_not_kept_as_a_zero(gyre: Gyre, tmp_path: Path) -> None:
    index, harness = tmp_path / "i.json", '["/bin/sh", "-c", "rm -r ../ws"]'
    words = ("tasks", "screen", WORDS, "--model", "nano", "--rollouts", "2", "--index", index)
    result = gyre(*words, "--set", f"harness.command={harness}")
    assert result.exit_code == 1, result.output
    assert json.loads(index.read_text())["scores"] == {"train-0000": [], "train-0001": []}


def test_only_what_was_solved_sometimes_is_chosen(tmp_path: Path) -> None:
    scores = {
        "never": [0.0, 0.9, 0.0, 0.0],
        "once": [1.0, 0.0, 0.5, 0.0],
        "mostly": [1.0, 1.0, 0.0, 1.0],
        "always": [1.0, 1.0, 1.0, 1.0],
        "unfinished": [1.0, 0.0],
    }
    told = json.loads(written(tmp_path, scores).read_text())
    assert told["tasks"] == ["once", "mostly"]
    assert told["solved"] == {"never": 0, "once": 1, "mostly": 3, "always": 4, "unfinished": 1}


def test_an_index_is_a_source_of_tasks(tmp_path: Path) -> None:
    index = written(tmp_path, {"train-0000": [1, 0, 0, 0], "train-0001": [1, 1, 1, 1]})
    examine(str(index))
    assert [task.name for task in bring(str(index), tmp_path / "tasks")] == ["train-0000"]
    found = check_config(Config.load(None, [f"tasks.train={index}", "tasks.heldout=words:2:heldout"]))
    assert (found["train_tasks"], found["heldout_tasks"]) == (1, 2)


def test_a_folder_is_found_from_where_the_index_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        swe_folder(tmp_path / "data/source" / name, instance_id=name)
    scores = {"one": [0, 0, 0, 0.0], "two": [1.0, 0, 0, 0]}
    index = written(tmp_path / "data", scores, source=str(tmp_path / "data/source"))
    assert json.loads(index.read_text())["source"] == "source"
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert [task.name for task in bring(str(tmp_path / "elsewhere/i.json"), tmp_path / "tasks")] == ["two"]


def test_an_index_without_tasks_or_with_unknown_ones_is_refused(tmp_path: Path) -> None:
    index = written(tmp_path, {"train-0000": [0, 0, 0, 0]})
    with pytest.raises(TaskError, match="names no task; screen other tasks"):
        examine(str(index))
    index.write_text(json.dumps({"source": WORDS, "seed": 0, "tasks": ["train-0007"]}))
    with pytest.raises(TaskError, match="holds no task 'train-0007', which the index names"):
        bring(str(index), tmp_path / "tasks")
    index.write_text("{}")
    with pytest.raises(TaskError, match="not an index"):
        examine(str(index))


def test_an_index_about_something_else_is_not_gone_on_with(gyre: Gyre, tmp_path: Path) -> None:
    index = written(tmp_path, {"train-0000": [0.0]}, model="other")
    said = refusal(gyre("tasks", "screen", WORDS, "--model", "nano", "--index", index))
    assert "is about source, seed and model" in said
    assert said.endswith("name another --index")


def test_a_model_that_is_not_there_is_one_line(gyre: Gyre, tmp_path: Path) -> None:
    said = refusal(gyre("tasks", "screen", WORDS, "--model", "nowhere", "--index", tmp_path / "i.json"))
    assert said.startswith("nowhere: no run in runs")
