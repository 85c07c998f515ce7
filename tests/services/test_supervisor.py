"""Which ends of processes end a run, and who is started again."""

import asyncio
import errno
import signal
import time
from pathlib import Path
from typing import cast

import pytest

from bus.jetstream import Bus
from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.config import Config
from gyre.core.progress import Progress
from schemas.envelope import Event
from schemas.roles import CellRegistered
from schemas.runs import RunFinished
from services.births import Born, NotBorn
from services.place import Place
from services.place import started as begun
from services.supervisor import MOST_QUICK_DEATHS, MOST_QUICK_KILLS, Child, Supervisor, services_of
from services.train import Watch
from tests.core import facts
from tests.e2e.living import heard, listening, opened_run, processes


def supervisor(folder: Path, *children: Child) -> Supervisor:
    (folder / "logs").mkdir()
    for child in children:
        child.born = time.monotonic()
        (folder / "logs" / f"{child.name}.log").write_text("now cell ERROR model folder: it is damaged\n")
    return Supervisor(folder, Config(), None, list(children))


async def ends(made: Supervisor, code: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.supervisor.MOST_DOUBLINGS", -20)  # no pauses to wait for
    for _ in range(times):
        await made._after_death(made.children[0], code, "")


@pytest.mark.parametrize(("code", "most"), [(1, MOST_QUICK_DEATHS), (-signal.SIGKILL, MOST_QUICK_KILLS)])
async def test_a_process_that_ends_at_once_again_and_again_ends_the_run_a_killed_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, most: int
) -> None:
    made = supervisor(tmp_path, Child("cell", 0))
    await ends(made, code, most - 1, monkeypatch)
    assert made.fatal == ""
    await ends(made, code, 1, monkeypatch)
    assert made.fatal == f"cell-0 ended {most} times at once (exit {code}): model folder: it is damaged"


async def test_a_system_that_is_short_of_files_for_a_while_costs_a_start_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = supervisor(tmp_path, Child("packer", None))
    tries = iter([OSError(errno.EMFILE, "Too many open files"), NotBorn("no memory"), OSError(errno.ENOSPC, "full")])

    async def start(_: Supervisor, child: Child) -> Born:
        child.born = time.monotonic()
        raise next(tries)

    monkeypatch.setattr("services.supervisor.MOST_DOUBLINGS", -20)
    monkeypatch.setattr(Supervisor, "_start", start)
    await asyncio.wait_for(made._keep(made.children[0]), 10)
    assert made.children[0].restarts == 2
    assert (made.fatal, made.full) == ("packer cannot be started: [Errno 28] full", True)


async def test_a_run_that_nobody_keeps_any_more_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(_: Supervisor, child: Child) -> None:
        raise RuntimeError(f"{child.name} is nothing that can be kept")

    monkeypatch.setattr(Supervisor, "_keep", keep)
    made = Supervisor(tmp_path, Config(), None)
    await asyncio.wait_for(made.run(lambda: False), 10)
    assert made.fatal == "supervising failed: cell-0 is nothing that can be kept"


def test_only_what_is_not_heard_any_more_is_wanted_back(tmp_path: Path) -> None:
    made = supervisor(tmp_path, Child("cell", 0), Child("cell", 1), Child("packer", None), Child("admission", None))
    made.revive({"packer", "0"})
    assert [child.name for child in made.children if child.wanted.is_set()] == ["cell-1", "admission"]


async def test_a_hanging_cell_is_ended_by_its_instance_however_late_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long log is read from its beginning when a run is resumed: by then a former cell's place may be taken."""
    broker, ended = MemoryBroker(), list[str]()
    broker.provision("r", Limits())
    bus = MemoryBus(broker, "r", "cell", "one", tmp_path)
    monkeypatch.setattr("services.supervisor._signal", lambda child, _: ended.append(child.instance))
    made, watch = supervisor(tmp_path, Child("cell", 0, instance="hangs")), Watch(Progress())
    watch.lost = made.replace

    async def say(*events: Event) -> None:
        place = Place("cell", "one", "r", tmp_path, "", Config())
        commit = place.commit(events, as_of=0, correlation="r").model_copy(update={"time": 1})  # a clock far behind
        await bus.ev.append(place.subject("cell", 0), commit)

    await say(facts.registered(0, "former"), facts.lost(0, "former"), facts.registered(0, "hangs"))
    await say(facts.lost(0, "former"), facts.lost(1, "hangs"), facts.lost(0, "hangs"))
    await say(RunFinished(steps=1, dispatched=1, launched=1, terminated=1))
    reading = asyncio.create_task(watch.read(cast("Bus", bus)))
    await asyncio.wait_for(watch.until_over(), 30)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert ended == ["hangs"]


async def test_a_cell_is_the_instance_that_its_supervisor_made_it_and_the_next_one_is_another(tmp_path: Path) -> None:
    async with opened_run(tmp_path) as (opened, bus), listening(bus) as log:
        (opened.folder / "logs").mkdir(exist_ok=True)
        started_with = Config.recorded((await begun(bus.ev)).config)
        made = Supervisor(opened.folder, started_with, None, [Child("cell", 0)])
        (child,) = made.children
        try:
            former = await made._start(child)
            _, first = await heard(log, lambda event: isinstance(event, CellRegistered))
            assert isinstance(first, CellRegistered)
            assert child.instance == first.instance
            former.send_signal(signal.SIGKILL)
            assert await former.wait() == -signal.SIGKILL

            later = await made._start(child)
            _, second = await heard(log, lambda event: isinstance(event, CellRegistered))
            assert isinstance(second, CellRegistered)
            assert child.instance == second.instance != first.instance
            assert processes(opened.folder)["cell-0"] == later.pid
            made.replace(0, first.instance)
            later.send_signal(signal.SIGTERM)
            assert await later.wait() == 0
        finally:
            made.kill()
            await asyncio.gather(*(each.close() for each in made._nurseries.values()))


SERVICE = """trap 'echo {name} >>ended; exit 0' TERM; echo up; while :; do sleep 0.01; done"""
STUBBORN = """trap '' TERM; echo up; while :; do sleep 0.01; done"""


async def started(child: Child, script: str, folder: Path) -> Child:
    """A process in the child's place that knows what to do when it is told to end."""
    words = ("sh", "-c", script.format(name=child.service))
    process = await asyncio.create_subprocess_exec(*words, cwd=folder, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    child.process = cast("Born", process)
    return child


async def ended(child: Child) -> int:
    """The exit code of a process, once nobody holds its output any more."""
    process = cast("asyncio.subprocess.Process", child.process)
    assert process.stdout is not None
    await process.stdout.read()
    return await process.wait()


async def test_who_serves_others_ends_after_them(tmp_path: Path) -> None:
    config = Config.of({"telemetry": {"otlp_endpoint": "http://127.0.0.1:1"}}, "")
    children = [await started(Child(*each), SERVICE, tmp_path) for each in services_of(config)]
    await supervisor(tmp_path, *children)._stop()
    assert [await ended(child) for child in children] == [0] * len(children)
    names = (tmp_path / "ended").read_text().split()
    assert set(names[:2]) == {"runner", "examiner"}
    assert names[2] == "proxy"
    assert names[3 : 3 + config.cells.count] == ["cell"] * config.cells.count
    assert sorted(names[3 + config.cells.count :]) == [
        "admission", "builder", "evaluator", "packer", "scheduler", "traces",
    ]  # fmt: skip


async def test_one_who_does_not_end_is_killed_when_all_have_been_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.supervisor.STOP_SECONDS", 0.01)
    children = [await started(Child("runner", None), STUBBORN, tmp_path) for _ in range(2)]
    await supervisor(tmp_path, *children)._stop()
    assert [await ended(child) for child in children] == [-signal.SIGKILL] * 2
