"""A run of real processes for the tests: started, watched through its log, hurt, and held against its rules."""

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.jetstream import Bus
from bus.log import Stored
from gyre.config import Config
from schemas.envelope import Event
from services.place import new_instance
from services.setup import Opened, open_run

RUN = "tried"
CONFIG = """
[run]
name = "tried"
steps = {steps}
folder = "{folder}"
[tasks]
train = "words:16:train"
heldout = "words:16:heldout"
[schedule]
groups = {groups}
executions = 4
phi = 0.5
mu = 2
rho_min = 0.5
tau_seconds = 0.05
[cells]
count = 2
concurrency = 8
lost_after_seconds = 3.0
[rollout]
max_tokens = 24
context_tokens = 512
[harness]
command = ["{{python}}", "-I", "-S", "{{reference}}", "--max-turns", "3", "--max-tokens", "24"]
[optimizer]
lr = 1e-4
[packing]
row_tokens = 512
micro_step_tokens = 512
[evaluation]
episodes = 0
"""

MODELLED = """
[run]
name = "{name}"
steps = {steps}
folder = "{folder}"
[model]
path = "modelled"
[modelled]
token_seconds = {token_seconds}
training_seconds = {training_seconds}
[tasks]
train = "words:{tasks}:train"
heldout = "words:2:heldout"
[schedule]
groups = 2
executions = 2
phi = 0.5
mu = {mu}
tau_seconds = 0.05
[cells]
count = 2
concurrency = 4
[rollout]
max_tokens = 32
context_tokens = 300
[harness]
command = ["{{python}}", "-I", "-S", "{{stub}}", "--calls", "{calls}", "--tokens", "{tokens}", "--most", "{most}"]
[packing]
row_tokens = 300
micro_step_tokens = 300
[evaluation]
episodes = 0
[analytics]
sink = {sink}
"""


def write_config(folder: Path, steps: int = 4, groups: int = 2) -> Path:
    """A small run: nano, N = 4, phi = 0.5, mu = 2, K = 2."""
    path = folder / "small.toml"
    path.write_text(CONFIG.format(folder=folder / "runs", steps=steps, groups=groups))
    return path


def write_modelled(folder: Path, name: str, **settings: object) -> Path:
    """Two cells that wait instead of computing, B = 2, N = 2, with any of `MODELLED`'s settings changed."""
    path = folder / f"{name}.toml"
    given = {"steps": 2, "mu": 2, "tasks": 16, "token_seconds": 0.005, "training_seconds": 0.1, "sink": "false"}
    calls = {"calls": 6, "tokens": 48, "most": 96}
    path.write_text(MODELLED.format(name=name, folder=folder / "runs", **{**given, **calls, **settings}))
    return path


@dataclass(slots=True)
class Command:
    """A `gyre` command under way."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    """Of stderr, so far."""

    @classmethod
    async def start(cls, *arguments: str | Path) -> "Command":
        """Run `gyre ...` as a user would."""
        pipe = asyncio.subprocess.PIPE
        words = [str(each) for each in arguments]
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.cli", *words, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL
            )
        )

    async def line(self, holds: Callable[[str], bool]) -> str:
        """The first line of stderr that holds; an error if the command ends before."""
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            self.lines.append(raw.decode().rstrip())
            if holds(self.lines[-1]):
                return self.lines[-1]
        raise AssertionError(f"ended before such a line: {self.lines}")

    async def end(self) -> tuple[int, str]:
        """Exit code and stdout; all of stderr is in `lines` then."""
        out, err = await self.process.communicate()
        self.lines += err.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode()

    async def result(self) -> dict[str, Any]:
        """What it says with --json, when it ends well."""
        code, out = await self.end()
        assert code == 0, self.lines
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def stop(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@asynccontextmanager
async def opened_run(
    folder: Path, steps: int = 4, groups: int = 2, overrides: tuple[str, ...] = ()
) -> AsyncGenerator[tuple[Opened, Bus]]:
    """A run that is ready for `gyre resume`, and an ear on its log; its server is ended afterwards."""
    opened = await open_run(Config.load(write_config(folder, steps, groups), overrides))
    bus = await Bus.connect(opened.url, opened.run, "reader", new_instance("reader"), opened.folder)
    try:
        yield opened, bus
    finally:
        await bus.close()
        if opened.server:
            await asyncio.to_thread(opened.server.stop)


async def heard(log: AsyncGenerator[Stored, None], holds: Callable[[Event], bool]) -> tuple[Stored, Event]:
    """The next event of a log that holds."""
    async for stored in log:
        for event in stored.commit.events if stored.commit else ():
            if holds(event):
                return stored, event
    raise AssertionError("the log ended")


def listening(bus: Bus) -> Any:
    """The run's log from its beginning, closed at the end of a `with`."""
    return aclosing(bus.ev.read(0))


def processes(folder: Path) -> dict[str, int]:
    """Processes of a run by name (cell-0, scheduler, nursery-cells, ...) -> pid."""
    found: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "services.runtime" in words and str(folder) in words:
            service, _, *more = words[words.index("services.runtime") + 1 :]
            found["-".join([service, *(each for each in more[:1] if each)])] = int(entry.name)
        elif "services.nursery" in words and str(folder) in words:
            found[f"nursery-{words[words.index('services.nursery') + 1]}"] = int(entry.name)
    return found


def kill(pid: int) -> None:
    """SIGKILL, and wait until the process is gone."""
    watch = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        _gone(watch, 10.0)
    finally:
        os.close(watch)


async def all_gone(pids: list[int], seconds: float) -> bool:
    """Whether these processes end within the time."""

    def wait() -> bool:
        for pid in pids:
            try:
                watch = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if not _gone(watch, seconds):
                    return False
            finally:
                os.close(watch)
        return True

    return await asyncio.to_thread(wait)


def _gone(watch: int, seconds: float) -> bool:
    ended = select.poll()  # `select` takes no file beyond its 1024th
    ended.register(watch, select.POLLIN)
    return bool(ended.poll(1000 * seconds))
