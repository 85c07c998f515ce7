"""The runner with agents in namespaces of their own: they do their work and see nothing else."""

from pathlib import Path
from typing import Any

import pytest

from gyre.tasks.folder import load_tasks
from services import runner
from services.judges import judges_of
from tests.sandboxes.stand import lacking
from tests.services.work.test_runner import ended, episode, restored

WHY = lacking("bubblewrap")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY or "it works here")


@pytest.fixture
def isolated(run: Any) -> Any:
    run.configure(sandbox={"kind": "bubblewrap", "processes": 48})
    return run


async def test_the_reference_harness_works_through_the_doorway_and_its_set_up_is_told(
    isolated: Any, model: Any
) -> None:
    model.does(("write", {"path": "out.txt", "content": "hello"}))
    isolated.task("job")
    async with isolated.serving(runner.serve, "runner"):
        await isolated.dispatch("x0-0", "job")
        await isolated.grant("x0-0")
        event = await ended(isolated, "x0-0")
    assert (event.reason, event.stage, event.exit_code, event.detail) == ("completed", "agent", 0, "done")
    assert (restored(isolated, event) / "out.txt").read_text().strip() == "hello"
    assert event.setup_seconds is not None
    assert event.setup_seconds > 0


async def test_an_agent_sees_no_login_no_tests_and_no_other_work(isolated: Any) -> None:
    for name in ("users/scheduler", "work/x9-9/ws/plan"):
        path = isolated.folder / name
        path.parent.mkdir(parents=True)
        path.write_text("a secret")
    script = (
        f"cd {isolated.folder}; find . -type f >$HOME/../ws/seen; cat users/* proxy.key tasks/train/*/tests/*; true"
    )
    event = await episode(isolated, script)
    seen = (restored(isolated, event) / "seen").read_text().split()
    assert [name for name in seen if not name.startswith("./work/x0-0/")] == []
    assert "./work/x0-0/instruction.md" in seen
    assert "No such file" in event.detail


async def test_a_fork_bomb_is_recorded_with_its_reason(isolated: Any) -> None:
    event = await episode(isolated, "b() { b | b & b; }; b", seconds=60.0)
    assert (event.reason, event.stage) == ("failed", "agent")
    assert "ended because it started more than 48 processes" in event.detail


async def test_what_cannot_be_started_fails_in_its_set_up(isolated: Any) -> None:
    isolated.configure(sandbox={"kind": "bubblewrap", "visible": ["/proc/self/mem"]})
    event = await episode(isolated, "exit 0")
    assert (event.reason, event.stage, event.setup_seconds) == ("failed", "setup", None)
    assert "cannot be started: bwrap: " in event.detail


async def test_tests_run_where_the_agent_never_was(isolated: Any, tmp_path: Path) -> None:
    isolated.task("job", test='cat "$TESTS_DIR/test.sh" >/dev/null && test -e start.txt && ! ls /root/.ssh')
    judges = judges_of(isolated.config, isolated.folder)
    task = next(task for task in load_tasks(isolated.folder / "tasks/train") if task.name == "job")
    (tmp_path / "box/ws").mkdir(parents=True)
    (tmp_path / "box/ws/start.txt").write_text("start\n")
    verdict = await judges.designated.evaluate(task, tmp_path / "box/ws", tmp_path / "box", 30.0)
    await judges.close()
    assert verdict.score == 1.0, verdict
    assert verdict.provenance is not None
    assert verdict.provenance.sandbox == "bubblewrap"
