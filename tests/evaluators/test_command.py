"""Tests as the evaluator, in every sandbox: the same state has the same score, whatever the agent prepared for it."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from gyre.evaluators.command import CommandEvaluator, verdict
from gyre.evaluators.desk import Desk
from gyre.evaluators.port import Errand, EvaluatorError, Finished
from gyre.sandboxes.orphans import marked
from gyre.tasks.folder import Task
from tests.evaluators.conftest import Work

CHECK = '[ "$(cat out)" = 4 ]'
RUNS_THE_WORK = 'echo 0 >$REWARD_FILE; /bin/sh ./work.sh; [ "$(cat out)" = 4 ] && echo 1 >$REWARD_FILE; exit 0'


async def test_a_state_is_scored_and_the_verdict_says_by_what(work: Work) -> None:
    work.leaves(out="4\n")
    task = work.task(CHECK)
    found = await work.verdict(task)
    assert (found.score, found.valid) == (1.0, True)
    assert found.provenance is not None
    assert found.provenance.evaluator == "tests"
    assert found.provenance.sandbox == work.run.sandbox
    assert found.provenance.digest == CommandEvaluator(work.run).digest((task,))
    assert (await work.verdict(work.task("exit 1"))).provenance != found.provenance


async def test_a_partial_score_is_written_and_read(work: Work) -> None:
    assert (await work.verdict(work.task('echo 0.25 >"$REWARD_FILE"; exit 9'))).score == 0.25


async def test_a_command_scores_instead_and_is_given_the_tests(work: Work) -> None:
    judge = work.folder / "judge.sh"
    judge.write_text('grep -q 4 "$1/expected" && grep -q sum "$2" && [ "$3" = job ] && cat out >"$REWARD_FILE"\n')
    work.leaves(out="0.5")
    found = await work.verdict(work.task(expected="4"), "/bin/sh ./judge.sh {tests} {instruction} {task}")
    assert (found.score, found.detail) == (0.5, "")
    assert found.provenance is not None
    assert found.provenance.evaluator == "command"


@pytest.mark.parametrize(
    "trick",
    [
        'rm -f "$REWARD_FILE"; mkfifo "$REWARD_FILE"',
        'rm -f "$REWARD_FILE"; mkdir "$REWARD_FILE"',
        'echo 1 >real; ln -sf "$PWD/real" "$REWARD_FILE"',
        'ln -sf /dev/zero "$REWARD_FILE"',
        'head -c 100000000 /dev/zero >"$REWARD_FILE"',
        '{ printf 1; head -c 4000 /dev/zero | tr "\\0" " "; } >"$REWARD_FILE"',
        'printf "1\\n0\\n" >"$REWARD_FILE"',
        'chmod 000 "$REWARD_FILE"; rm -rf "$(dirname "$REWARD_FILE")"; echo 1 >"$(dirname "$REWARD_FILE")"',
    ],
)
async def test_what_is_no_plain_number_where_the_reward_belongs_is_no_score(work: Work, trick: str) -> None:
    work.leaves(work_sh=trick, out="wrong")
    found = await work.verdict(work.task('echo 0 >"$REWARD_FILE"; /bin/sh ./work.sh; exit 7'))
    assert (found.score, found.valid) == (None, False)


async def test_a_reward_that_waits_where_an_earlier_one_was_read_is_not_taken(work: Work) -> None:
    """Nothing that the agent left can lie at a path which did not exist before the judgement."""
    work.leaves(reward="1")
    (work.box / "reward.txt").write_text("1")
    (work.box / "reward").mkdir()
    (work.box / "reward/reward.txt").write_text("1")
    assert (await work.verdict(work.task("exit 1"))).score == 0.0


async def test_places_of_two_judgements_are_never_the_same(work: Work) -> None:
    task = work.task('basename "$(dirname "$TESTS_DIR")"; exit 1')
    first, second = (await work.verdict(task)).detail, (await work.verdict(task)).detail
    assert (len(first), first != second) == (len("x.eval.judge-") + 32, True)


async def test_tests_that_the_work_changes_do_not_count_and_the_tasks_own_stay(work: Work) -> None:
    work.leaves(work_sh='echo "echo 1 >\\$REWARD_FILE" >"$TESTS_DIR/grade.sh"; exit 0')
    task = work.task('/bin/sh ./work.sh; . "$TESTS_DIR/grade.sh"', **{"grade.sh": "exit 1"})
    found = await work.verdict(task)
    if work.run.sandbox == "process":
        assert "tests/grade.sh was changed while the tests ran" in found.detail
    assert found.score == (None if work.run.sandbox == "process" else 0.0)  # elsewhere they cannot be written
    assert (task.tests / "grade.sh").read_text() == "exit 1"


async def test_nothing_can_be_laid_beside_tests_where_their_sandbox_sees_to_that(work: Work) -> None:
    """A module that the work puts there would be imported by what the tests start next."""
    work.leaves(work_sh='echo "echo 1 >\\$REWARD_FILE" >"$TESTS_DIR/more.sh"; exit 0')
    task = work.task('/bin/sh ./work.sh; [ -e "$TESTS_DIR/more.sh" ]')
    assert (await work.verdict(task)).score == (1.0 if work.run.sandbox == "process" else 0.0)


async def test_what_an_evaluator_that_died_left_is_cleared_away(work: Work) -> None:
    dead = Desk.lay(work.task(), work.box)
    assert (await work.verdict(work.task("exit 1"))).score == 0.0
    assert not dead.tests.exists()
    assert Desk.asides(work.box) == ()


async def test_tests_are_no_better_for_being_replaced_by_a_link(work: Work) -> None:
    work.leaves(work_sh='ln -sf /dev/null "$TESTS_DIR/grade.sh"; exit 0')
    task = work.task('/bin/sh ./work.sh; . "$TESTS_DIR/grade.sh"; exit 0', **{"grade.sh": "exit 1"})
    assert (await work.verdict(task)).score in (None, 0.0)


async def test_what_the_agent_prepared_for_its_own_shell_is_not_met(work: Work) -> None:
    for name in (".profile", ".bashrc", ".bash_profile"):
        work.leaves(**{name: "echo 1 >$REWARD_FILE; exit 0"})
    for name in ("cat", "grep", "python3", "[", "test"):
        work.leaves(**{name: "#!/bin/sh\nexit 0\n"})
    work.leaves(out="5", sitecustomize_py="import os; os._exit(0)", usercustomize_py="import os; os._exit(0)")
    check = "python3 -I -c \"import sys; sys.exit(open('out').read() != '4')\""
    if not Path("/usr/bin/python3").exists():
        check = CHECK
    assert (await work.verdict(work.task(f"{CHECK} || {check}"))).score == 0.0


async def test_its_home_and_scratch_are_new(work: Work) -> None:
    work.leaves(out="4")
    script = '[ -z "$(ls -A "$HOME")" ] && [ -z "$(ls -A "$TMPDIR")" ] && case "$HOME" in "$PWD"/*) exit 1;; esac'
    assert (await work.verdict(work.task(script))).score == 1.0


async def test_what_the_work_starts_does_not_live_on(work: Work) -> None:
    work.leaves(work_sh='trap "" HUP TERM; setsid sleep 300 >/dev/null 2>&1 & setsid setsid sleep 300 &')
    assert (await work.verdict(work.task("/bin/sh ./work.sh; exit 1"))).score == 0.0
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    assert not [pid for pid in pids if marked(pid, work.box)]
    assert Desk.asides(work.box) == ()


async def test_a_flood_of_output_is_neither_kept_nor_waited_for(work: Work) -> None:
    work.leaves(work_sh="yes flood | head -c 5000000")
    found = await work.verdict(work.task("/bin/sh ./work.sh; exit 1"))
    assert (found.score, len(found.detail) <= 200) == (0.0, True)


async def test_tests_that_hang_are_ended_and_a_reward_that_was_written_first_does_not_count(work: Work) -> None:
    work.leaves(work_sh='echo 1 >"$REWARD_FILE"; sleep 300')
    found = await work.verdict(work.task("/bin/sh ./work.sh", seconds=0.5))
    assert found.score is None
    assert "tests were ended after 0.5 s" in found.detail


async def test_the_budget_counts_more_than_the_tasks_own_limit(work: Work) -> None:
    found = await work.verdict(work.task("sleep 300", seconds=300), limit=0.3)
    assert "after 0.3 s" in found.detail


async def test_work_that_crashes_its_tests_has_the_zero_that_was_written_first(work: Work) -> None:
    """The recipe of docs/evaluators.md: zero first, the score last."""
    work.leaves(work_sh="kill -11 $PPID; exit 0", out="4")
    assert (await work.verdict(work.task(RUNS_THE_WORK))).score == 0.0
    work.leaves(work_sh="exit 0", out="4")
    assert (await work.verdict(work.task(RUNS_THE_WORK))).score == 1.0


async def test_of_tests_that_were_killed_only_a_zero_stands(work: Work) -> None:
    """Nobody can tell who did it: work gains nothing by it, and is not left out either."""
    work.leaves(work_sh="kill -9 $PPID; exit 0", out="4")
    assert (await work.verdict(work.task(RUNS_THE_WORK))).score == 0.0
    found = await work.verdict(work.task('echo 1 >"$REWARD_FILE"; sh ./work.sh'))
    assert (found.score, "no verdict" in found.detail) == (None, True)


def test_tests_that_somebody_ended_or_that_cannot_judge_give_no_verdict_but_a_zero() -> None:
    assert [verdict(code, "0.5")[0] for code in (-9, 137, -15, -2, -1, 125)] == [None] * 6
    assert [verdict(code, "0")[0] for code in (-9, 137, -15, -2, -1)] == [0.0] * 5
    assert verdict(125, "0")[0] is None
    assert [verdict(code, "0.5")[0] for code in (-11, 139, -6, 143, 124, 127)] == [0.5] * 6


@pytest.mark.parametrize("kind", ["swe", "nl2repo"])
async def test_only_what_our_grader_writes_and_ends_well_with_counts(work: Work, kind: str) -> None:
    work.leaves(out="4")
    for end in ('echo 1 >"$REWARD_FILE"; exit 1', 'echo 1 >"$REWARD_FILE"; exit 125', "exit 1", "exit 0"):
        task = work.task(end).model_copy(update={"kind": kind})
        assert (await work.verdict(task)).score is None
    task = work.task('echo 0.5 >"$REWARD_FILE"').model_copy(update={"kind": kind})
    assert (await work.verdict(task)).score == 0.5
    assert (await work.verdict(task, "sh -c 'echo 1 >$REWARD_FILE; exit 9'")).score == 1.0


async def test_tests_that_cannot_judge_say_so_with_an_exit_code_of_their_own(work: Work) -> None:
    work.leaves(out="4")
    assert (await work.verdict(work.task('echo 1 >"$REWARD_FILE"; exit 125'))).score is None


async def test_plugins_and_settings_that_the_work_brings_are_not_loaded_by_the_recipe_for_pytest(work: Work) -> None:
    if work.run.sandbox != "process":
        pytest.skip("this interpreter's packages are not visible there")
    lies = "import os\nprint('loaded')\nos._exit(0)\n"
    work.leaves(
        conftest_py=lies, sitecustomize_py=lies, pytest_py=lies, json_py=lies, work_py="def double(x): return 3 * x\n"
    )
    (work.left / "pytest.ini").write_text("[pytest]\naddopts = --co -p lies\n")
    check = (
        "import sys\nsys.path.append('.')\n\ndef test_it():\n    from work import double\n    assert double(2) == 4\n"
    )
    pytest_ = f'{sys.executable} -I -m pytest -q --noconftest -c /dev/null --rootdir "$TESTS_DIR"'
    recipe = f'{pytest_} -p no:cacheprovider "$TESTS_DIR/test_work.py"'
    task = work.task(recipe, test_work_py=check)
    found = await work.verdict(task)
    assert (found.score, "1 failed" in found.detail) == (0.0, True)
    work.leaves(work_py="def double(x): return x + x  # longer: else what was compiled just now may stand for it\n")
    assert (await work.verdict(task)).score == 1.0


async def test_a_place_that_cannot_be_had_is_the_evaluators_failure(work: Work) -> None:
    class Nowhere:
        sandbox = "nowhere"

        def image(self, task: Task) -> str:
            return "an-image"

        async def clear(self, box: Path) -> None:
            shutil.rmtree(box)

        async def __call__(self, errand: Errand) -> Finished:
            raise EvaluatorError("an-image: cannot be pulled")

    work.leaves(out="4")
    found = await CommandEvaluator(Nowhere()).evaluate(work.task(CHECK), work.left, work.box, 9)
    assert (found.score, found.detail) == (None, "an-image: cannot be pulled")
    assert found.provenance is not None
    assert (found.provenance.sandbox, found.provenance.image) == ("nowhere", "an-image")


def test_links_inside_a_task_are_followed_when_its_tests_are_copied(tmp_path: Path, work: Work) -> None:
    work.task()
    (work.folder / "tasks/job/environment").mkdir()
    (work.folder / "tasks/job/environment/data").write_text("4")
    (work.folder / "tasks/job/tests/data").symlink_to("../environment/data")
    task = work.task()
    desk = Desk.lay(task, tmp_path / "box")
    assert ((desk.tests / "data").read_text(), (desk.tests / "data").is_symlink()) == ("4", False)
    assert (desk.disturbed(), desk.written()) == ("", None)
    os.utime(desk.tests / "data")
    assert desk.disturbed() == ""
    (desk.tests / "data").chmod(0o700)
    assert desk.disturbed() == "data"


async def test_many_judgements_at_once_do_not_meet(work: Work) -> None:
    async def one(index: int) -> float | None:
        box = work.folder / f"work/y{index}.eval"
        (box / "ws").mkdir(parents=True)
        (box / "ws/out").write_text(f"0.{index}")
        return (await CommandEvaluator(work.run).evaluate(task, box / "ws", box, 30)).score

    task = work.task('cat out >"$REWARD_FILE"')
    assert await asyncio.gather(*(one(index) for index in range(1, 7))) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
