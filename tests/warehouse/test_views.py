"""What the views and the canned questions say of told runs: against folds by hand, and against silence."""

import json
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from gyre.core.timeline_fold import fold
from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.queries import QUERIES
from gyre.warehouse.queries_figures import FIGURES
from gyre.warehouse.rows import lines
from gyre.warehouse.views import VIEWS
from schemas.calls import DeliveryCorrected
from schemas.envelope import COMMIT
from schemas.roles import RoleTransitionFailed, RoleTransitionRequested
from tests.core.diagnosis.scene import assessed
from tests.core.told import Told, a_run, asked, lost, moved
from tests.core.world import WEIGHTS, registered
from tests.warehouse.told import LOGPROBS, bare, committed, dispatch, executed, faulty, healthy, rounded, rows, started

ALWAYS = {"terminations", "stage-times", "group-spread", "tool-use"}
"""Failure views that describe: they speak of any run that rolled out."""
Ask = Any


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    found = Warehouse(str(tmp_path_factory.mktemp("told")))
    for run, told in (("bare", bare()), ("healthy", healthy()), ("faulty", faulty()), ("rounded", rounded())):
        found.insert(rows(run, told))
    yield found
    found.close()


@pytest.fixture
def ask(warehouse: Warehouse) -> Ask:
    def asked(question: str, run: str = "healthy", **parameters: Any) -> list[dict[str, Any]]:
        canned = QUERIES.get(question)
        sql, defaults = (canned.sql, canned.parameters) if canned else (question, {})
        answer = warehouse.query(sql, {"run": run, **defaults, **parameters}, "JSONEachRow")
        return [json.loads(line) for line in answer.splitlines()]

    return asked


@pytest.mark.parametrize("name", QUERIES)
def test_each_question_speaks_where_it_must_and_is_silent_where_it_must(ask: Ask, name: str) -> None:
    speaks, silent = ("healthy", "bare") if name in FIGURES else ("faulty", "bare" if name in ALWAYS else "healthy")
    assert ask(name, speaks), f"{name} has nothing to say of the {speaks} run"
    assert ask(name, silent) == [], f"{name} has something to say of the {silent} run"


def test_what_waits_to_be_launched_is_not_counted_as_running(ask: Ask, warehouse: Warehouse) -> None:
    launched, *_ = executed(0, 0, reward=1)
    warehouse.insert(rows("begun", [started(), *dispatch(), launched]))
    ((step, found),) = [(row["step"], row) for row in ask("terminations", "begun")]
    assert (step, found["n"], found["queued"], found["running"], found["completed"]) == (None, 8, 7, 1, 0)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_keeps_runs_apart(ask: Ask, name: str) -> None:
    sql = f"SELECT run, count() AS n FROM {name} GROUP BY run"
    runs = {row["run"]: row["n"] for row in ask(sql)}
    assert "healthy" in runs
    assert ask(f"SELECT count() AS n FROM {name} WHERE run = 'healthy'") == [{"n": runs["healthy"]}]


def test_an_execution_is_one_row_from_dispatch_to_admission(ask: Ask) -> None:
    found = ask("SELECT * FROM executions WHERE run = {run:String} AND execution = 'x1-1'")[0]
    assert (found["group"], found["task"], found["version"], found["reason"]) == ("g1", "b", 0, "completed")
    assert (found["calls"], found["tool_calls"], found["reward"], found["targets"]) == (2, 2, 1, 6)
    assert (found["input_tokens"], found["output_tokens"], found["tokens"]) == (12, 8, 20)
    assert found["seconds"] == 5
    assert found["launched_at"] - found["dispatched_at"] == found["queue_seconds"]
    assert found["setup_seconds"] == 0.5
    assert found["terminated_at"] < found["sealed_at"] < found["graded_at"] < found["admitted_at"]


def test_a_publication_says_what_it_cost(ask: Ask) -> None:
    told = {"version": 2, "transport": "store", "bytes": WEIGHTS.size, "sent": WEIGHTS.size // 4}
    assert ask("publications") == [told | {"changed": 0.25, "seconds": 0.5}]


def test_an_assessment_says_who_judged(ask: Ask) -> None:
    sql = "SELECT DISTINCT valid, evaluator, judge FROM assessments WHERE run = 'faulty' ORDER BY valid"
    assert ask(sql) == [
        {"valid": False, "evaluator": "", "judge": ""},
        {"valid": True, "evaluator": "judge", "judge": "wise"},
    ]


def test_what_was_not_said_yet_is_null(ask: Ask) -> None:
    sql = "SELECT reward, excluded, excluded_because FROM executions WHERE run = 'faulty' AND execution = 'x2-1'"
    assert ask(sql) == [
        {"reward": None, "excluded": True, "excluded_because": "its tests crash"}
    ]  # fmt: skip


def test_a_call_says_prefill_and_decode_and_the_versions_that_spoke(ask: Ask) -> None:
    found = ask("SELECT * FROM calls WHERE run = {run:String} AND call = 'x0-0-c1'")[0]
    assert (found["context_tokens"], found["input_tokens"], found["output_tokens"]) == (12, 7, 4)
    assert (found["versions"], found["version_tokens"], found["cells"], found["parent"]) == (
        [0, 1],
        [1, 3],
        [1],
        "x0-0-c0",
    )


def test_a_tree_says_how_much_of_its_paths_is_shared(ask: Ask) -> None:
    """Paths of 9 and 16 tokens over 20 tokens: a fifth is shared."""
    found = ask("SELECT * FROM trees WHERE run = {run:String} AND execution = 'x0-0'")[0]
    assert (found["leaves"], found["path_tokens"], found["tokens"], found["longest"]) == (2, 25, 20, 16)
    assert found["shared_share"] == pytest.approx(0.2)


def test_a_group_says_what_its_rewards_teach(ask: Ask) -> None:
    found = ask(
        "SELECT group, outcome, rewards, excluded, placeholders FROM groups WHERE run = 'faulty' ORDER BY group"
    )
    assert [(row["outcome"], row["rewards"], row["excluded"], row["placeholders"]) for row in found] == [
        ("all one", [1, 1], 0, 0),
        ("mixed", [0, 1], 0, 0),
        ("too few", [0], 1, 0),
        ("mixed", [1, 0], 0, 1),
    ]


def test_rewards_that_differ_by_rounding_alone_are_equal(ask: Ask) -> None:
    found = ask("SELECT outcome, spread FROM groups WHERE run = 'rounded' AND outcome != 'open' ORDER BY group")
    assert [row["outcome"] for row in found] == ["all equal", "mixed"]
    assert [row["spread"] for row in found] == [0, pytest.approx(0.001)]


def test_a_step_sums_up_what_it_trained(ask: Ask) -> None:
    first, second = ask("SELECT * FROM steps WHERE run = {run:String} ORDER BY step")
    assert (first["loss"], first["gradient_norm"], second["gradient_norm"]) == (0.5, 2, 4)
    assert (first["groups"], first["staleness"], second["staleness"], first["score"]) == (2, 0, 1, 0.5)
    assert (first["trained"], first["masked_share"], first["max_delta_log_p"], first["k3"]) == (2, 0.5, 0.125, 0.125)
    assert first["ess"] == pytest.approx(9 / 10)  # (1 + 2)^2 / (2 (1 + 4))
    rollout, train = ([value for pair in LOGPROBS for value in pair[place]] for place in range(2))
    assert first["pearson"] == pytest.approx(statistics.correlation(rollout, train))
    assert second["pearson"] is None, "it was said before the sums were"
    assert first["seconds"] == first["updated_at"]
    assert second["seconds"] == second["updated_at"] - first["updated_at"]


def test_a_micro_step_says_who_claimed_it_and_how_often(ask: Ask) -> None:
    assert ask("redeliveries", "faulty") == [
        {"step": 2, "micro_step": 1, "claims": 2, "reissues": 1, "claimed_by": [0, 1], "seconds": 2}
    ]


def test_a_change_of_a_task_is_seen_between_two_versions(ask: Ask) -> None:
    assert [(row["task"], row["before"], row["after"]) for row in ask("task-grid", "faulty")] == [
        ("a", 1, 0),
        ("b", 0.5, 1),
    ]
    assert ask("task-grid", "faulty", first=0, last=0) == []


def test_failures_of_the_verifier_are_listed_with_how_far_they_got(ask: Ask) -> None:
    found = {(row["how_far"], row["why"]): row["n"] for row in ask("verifier-failures", "faulty")}
    assert found == {
        ("no valid score", "its tests crash"): 1,
        ("an assessment was invalid", "its tests crash"): 1,
        ("failed in setup", "no image"): 1,
    }


def test_held_out_tasks_that_are_not_solved_are_named(ask: Ask) -> None:
    assert ask("validation-failures", "faulty") == [
        {"task": "h", "episode": 1, "version": 2, "score": 0.5, "score_at_first": 1},
        {"task": "i", "episode": 2, "version": 2, "score": None, "score_at_first": 1},
    ]


def test_a_histogram_counts_each_once_in_bins_of_the_asked_width(ask: Ask) -> None:
    found = ask("execution-durations", width=2)
    assert [(row["low"], row["high"], row["n"]) for row in found] == [(4, 6, 4), (6, 8, 4)]
    assert sum(row["share"] for row in found) == pytest.approx(1)


CHANGES: Told = [
    (30, registered(0, "cell-0")),  # says again who it is
    (31, moved(0, "train")),
    (32, registered(0, "cell-0")),
    (33, lost(0)),
    (34, moved(0, "rollout")),  # comes too late
    (35, registered(0, "other")),
    (36, RoleTransitionRequested(transition="t2", cell=0, instance="other", to="train")),
    (37, lost(0)),  # of the one before
    (38, RoleTransitionFailed(transition="t2", cell=0, instance="other", phase="load", reason="no room")),
    (40, asked(1, "train")),
]


LATER = [*a_run(), (500, lost(1)), (600, assessed("x1-0", 1.0))]
"""States of a run that ended are scored once more."""


@pytest.mark.parametrize("told", [a_run(), a_run()[:-1] + CHANGES, LATER], ids=["orderly", "changing", "ended"])
def test_roles_last_as_long_as_in_the_timeline_of_the_same_log(warehouse: Warehouse, ask: Ask, told: Told) -> None:
    run = f"told{len(told)}"
    for place, (seconds, event) in enumerate(told, start=1):
        warehouse.insert(lines(run, "EV", place, f"ev.{run}.control", COMMIT.dump_json(committed(run, seconds, event))))
    sums: dict[int, dict[str, float]] = {}
    for row in ask("SELECT cell, standing, sum(seconds) AS s FROM roles WHERE run = {run:String} GROUP BY ALL", run):
        if row["s"]:
            sums.setdefault(row["cell"], {})[row["standing"]] = row["s"]
    for lane in fold(told).lanes:
        expected = {standing: seconds for standing, seconds in lane.seconds.items() if seconds}
        assert sums[lane.cell] == pytest.approx(expected)
    assert ask("SELECT seconds FROM runs WHERE run = {run:String}", run) == [{"seconds": fold(told).seconds}]


def test_a_call_is_delivered_as_the_last_word_about_it_says(warehouse: Warehouse, ask: Ask) -> None:
    became = [("x0-0-c0", False), ("x0-0-c1", False), ("x0-0-c1", True)]
    said = [DeliveryCorrected(execution="x0-0", call=name, delivered=delivered) for name, delivered in became]
    warehouse.insert(rows("said", [*healthy(), *said]))
    sql = "SELECT call, delivered FROM calls WHERE run = {run:String} AND execution < 'x0-2' ORDER BY call"
    assert [(row["call"], bool(row["delivered"])) for row in ask(sql, "said")] == [
        ("x0-0-c0", False),
        ("x0-0-c1", True),
        ("x0-1-c0", True),
        ("x0-1-c1", True),
    ]
