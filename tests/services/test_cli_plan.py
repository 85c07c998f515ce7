"""`gyre plan`: the same figures for machines and for people, from options or a file; nonsense is one line."""

import json
from pathlib import Path

import pytest

from tests.services.conftest import Gyre, refusal


def test_json_gives_staleness_depth_and_step_time_with_their_continuous_twins(gyre: Gyre) -> None:
    result = gyre(
        "plan",
        "--groups",
        4,
        "--executions",
        8,
        "--mu",
        1,
        "--phi",
        1.5,
        "--latency",
        3,
        "--rate",
        4,
        "--beta",
        0.5,
        "--json",
    )
    found = json.loads(result.stdout)
    assert (found["staleness"], found["depth"], found["depth_executions"]) == (1.5, 10, 80)
    assert found["step_time"] == pytest.approx(2)
    assert found["continuous"] == {
        "depth": pytest.approx(4.5), "staleness": pytest.approx(1.5), "ready": pytest.approx(1.5),
        "step_time": pytest.approx(4 * 3 / 4.5), "bound": "rollout",
    }  # fmt: skip
    assert found["continuous_same_depth"]["depth"] == 10


def test_a_target_is_answered_by_a_recommendation_and_all_its_candidates(gyre: Gyre) -> None:
    found = json.loads(gyre("plan", "--groups", 64, "--staleness", 1.5, "--steps", 12, "--json").stdout)
    assert (found["recommended"]["mu"], found["recommended"]["phi"]) == (3, 0.5)
    assert found["recommended"]["staleness_of_run"] == pytest.approx(1.375)
    assert [each["mu"] for each in found["candidates"]] == [1, 2, 3, 4]


def test_a_file_gives_what_options_do_not(gyre: Gyre, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[schedule]\ngroups = 6\nmu = 2\nphi = 0.5\n[cells]\nconcurrency = 40\n")
    found = json.loads(gyre("plan", "run.toml", "--mu", 4, "--json").stdout)
    assert (found["groups"], found["mu"], found["staleness"]) == (6, 4, 2.0)
    assert found["cells"] == 6  # 4.5 * 6 groups of 8 executions are 216


def test_people_read_the_same_with_the_equations_numbers(gyre: Gyre) -> None:
    shown = gyre("plan", "--groups", 64, "--mu", 3, "--latency", 2.96, "--rate", 64, "--staleness", 1.5).stdout
    for words in ("1.500 in the long run (eq. 2)", "224 groups", "eq. 19", "as stale", "as deep"):
        assert words in shown
    assert "set schedule.mu = 3, schedule.phi = 0.5" in shown


def test_without_times_only_counts_are_predicted(gyre: Gyre) -> None:
    shown = gyre("plan").stdout
    assert "step time" not in shown
    assert "depth" in shown


def test_a_slow_trainer_is_said_to_be_the_bound(gyre: Gyre) -> None:
    shown = gyre("plan", "--latency", 1, "--rate", 0.5).stdout
    assert "the trainer is the bound" in shown
    assert "pile up" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--latency", "3"], 2, "--latency and --rate"),
        (["--kind", "eager"], 2, "--kind eager"),
        (["--latency", "3", "--rate", "0"], 1, "rate: 0"),
        (["--latency", "-3", "--rate", "1"], 1, "latency: -3"),
        (["--phi", "0.3"], 1, "phi: 0.3"),
        (["--phi", "inf"], 1, "phi: inf is out of bounds; give a number from 0 to 1000000"),
        (["--staleness", "inf"], 1, "staleness: inf is out of bounds; give a number from 0 to 1000"),
        (["--latency", "1", "--rate", "inf"], 1, "rate: an update that takes 0"),
        (["absent.toml"], 1, "no such file"),
    ],
)
def test_what_cannot_be_planned_is_one_line(gyre: Gyre, arguments: list[str], code: int, words: str) -> None:
    assert words in refusal(gyre("plan", *arguments), code)
