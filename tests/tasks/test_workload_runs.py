"""A real run with one task of each workload, whose agents do part of the work and then hang until their deadline.

Server, proxy, runner and evaluator are processes; the test speaks for the scheduler. What was preserved at the timeout
is graded, and the share of it that is right is the reward.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gyre.config import Config
from gyre.sandboxes.bubblewrap import check_bubblewrap
from gyre.sandboxes.port import SandboxError
from schemas.calls import RecordsSealed
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, LaunchGranted
from schemas.rewards import AssessmentRecorded, RewardAssigned, RewardUnresolved
from services.place import connect
from services.setup import open_run

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = {"harbor/count-the-votes": 0.4, "swe/spans": 1 / 3, "nl2repo/tinyconf": 5 / 12}
"""Example -> what the agent below earns in it."""
AGENT = """
if [ -f ballots-north.txt ]; then
    printf 'ada 4\\ncleo 4\\n' >result.txt
elif [ -d spans ]; then
    [ "$(git rev-list --all --count)" = 1 ] || exit 9
    sed -i 's/<= found.-1..last:/<= found[-1].last + 1:/' spans/spans.py
else
    cat >tinyconf.py <<'PYTHON'
class ConfError(ValueError):
    pass

def loads(text):
    found, section = {}, ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line[1:-1].strip()
            found[section] = {}
        elif line and line[0] != "#":
            key, _, value = line.partition("=")
            value = {"true": True, "false": False}.get(value.strip(), value.strip())
            found.setdefault(section, {})[key.strip()] = value
    return found
PYTHON
fi
echo part of it is done
sleep 600 &
wait
"""


def sandboxes() -> list[Any]:
    try:
        check_bubblewrap()
    except SandboxError as error:
        return ["process", pytest.param("bubblewrap", marks=pytest.mark.skip(reason=str(error)))]
    return ["process", "bubblewrap"]


def config_of(folder: Path, sandbox: str) -> Config:
    for name in TASKS:
        shutil.copytree(EXAMPLES / name, folder / "source" / name.partition("/")[2])
    source = str(folder / "source")
    return Config.of(
        {
            "run": {"name": "hangs", "folder": str(folder / "runs")},
            "tasks": {"train": source, "heldout": source},
            "sandbox": {"kind": sandbox},
            "harness": {"command": ("/bin/sh", "-c", AGENT), "timeout_seconds": 4.0, "kill_grace": 0.5},
            "bus": {"durability": "laptop"},
        }
    )


@asynccontextmanager
async def services_of(folder: Path) -> AsyncIterator[None]:
    (folder / "logs").mkdir(exist_ok=True)
    running = []
    for name in ("proxy", "runner", "evaluator"):
        with (folder / "logs" / f"{name}.log").open("wb") as log:
            words = (sys.executable, "-m", "services.runtime", name, str(folder))
            leash = asyncio.subprocess.PIPE
            running.append(await asyncio.create_subprocess_exec(*words, stdin=leash, stdout=log, stderr=log))
    try:
        yield
    finally:
        for process in running:
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in running))


async def played(folder: Path, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Dispatch and grant one execution for each task; task -> what was said about it until all is said."""
    place, bus = await connect("scheduler", folder)
    heard: dict[str, list[Any]] = {name: [] for name in names}
    try:
        for index, task in enumerate(names):
            execution = f"x{index}-0"
            dispatched = ExecutionDispatched(
                execution=execution, group=f"g{index}", task=task, index=0, version=0, seed=1
            )
            for word, event in (("dispatched", dispatched), ("granted", LaunchGranted(execution=execution))):
                commit = place.commit((event,), as_of=0, correlation=execution)
                await bus.ev.append(place.subject("execution", execution, word), commit)
        by_execution = {f"x{index}-0": task for index, task in enumerate(names)}
        wanted = {ExecutionTerminated, AssessmentRecorded, RewardAssigned, RecordsSealed}
        async with asyncio.timeout(90), aclosing(bus.ev.read(0)) as log:
            async for stored in log:
                for event in stored.commit.events if stored.commit else ():
                    assert not isinstance(event, RewardUnresolved), event
                    if type(event) in wanted:
                        heard[by_execution[event.execution]].append(event)
                if all(wanted == {type(event) for event in events} for events in heard.values()):
                    return heard
    finally:
        await bus.close()
    raise AssertionError("the log ended")


@pytest.mark.parametrize("sandbox", sandboxes())
async def test_part_of_the_work_is_rewarded_after_a_forced_timeout(tmp_path: Path, sandbox: str) -> None:
    opened = await open_run(config_of(tmp_path, sandbox))
    assert opened.server is not None
    try:
        async with services_of(opened.folder):
            heard = await played(opened.folder, ("count-the-votes", "gyre__spans-1", "tinyconf"))
    finally:
        await asyncio.to_thread(opened.server.stop)
    for (task, events), earned in zip(heard.items(), TASKS.values(), strict=True):
        said = {type(event): event for event in events}
        ended = said[ExecutionTerminated]
        assert (ended.reason, ended.stage) == ("timeout", "agent"), (task, ended)
        assert "part of it is done" in ended.detail
        assert said[AssessmentRecorded].state == ended.state is not None
        assert said[RewardAssigned].reward == pytest.approx(earned, abs=1e-5), (task, said[AssessmentRecorded])
        assert not said[RewardAssigned].placeholder
