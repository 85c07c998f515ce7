"""Processes born in a nursery, as who supervises them sees it: born, told to end, ended with a code."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from gyre.config import Config
from gyre.models.load import MODELLED
from services.nursery import MOST_BYTES
from services.runtime import module_of

SINGLES = ("scheduler", "proxy", "runner", "builder", "evaluator", "admission", "packer", "examiner")
COMPUTE = (
    "services.cell.service",
    "torch",
    "gyre.trainers.reduction",
    "gyre.trainers.sketch",
    "gyre.trainers.optimizer",
)
TORCH = ("gyre.engines.torch_engine", "gyre.trainers.torch", "transformers.models.auto.modeling_auto")
ARCHITECTURE = "transformers.models.llama.modeling_llama"
"""Of the shipped model; a cell with another one imports what it lacks."""
WAITS = ("gyre.engines.modelled", "gyre.trainers.modelled")


def modules_of(config: Config, service: str) -> tuple[str, ...]:
    """What to import before services like this one are born."""
    if service != "cell":
        return ("uvloop", *map(module_of, SINGLES))
    return ("uvloop", *COMPUTE, *(WAITS if config.model.path == MODELLED else (*TORCH, ARCHITECTURE)))


class NotBorn(Exception):
    """No process was started; the message says why."""


@dataclass(slots=True, eq=False)
class Born:
    """A process; what a supervisor needs of `asyncio.subprocess.Process`."""

    pid: int
    _handle: int
    """A pidfd: it never means another process."""
    _leash: int
    """The process ends once this is closed."""
    returncode: int | None = None
    """As of `subprocess`: negative for a signal."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        await self._over.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Raises `ProcessLookupError` for one that ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._handle, number)

    def end(self, code: int) -> None:
        """It has ended."""
        self.returncode = code
        os.close(self._handle)
        os.close(self._leash)
        self._over.set()


@dataclass(frozen=True, slots=True)
class _Expected:
    """A birth that was asked for."""

    born: "asyncio.Future[Born]"
    leash: int


class Nursery:
    """One nursery process, started at the first birth and again after its end; processes end with it."""

    def __init__(self, name: str, folder: Path, modules: Iterable[str]) -> None:
        """`name` among those of the run folder."""
        self._command = (sys.executable, "-m", "services.nursery", name, str(folder), ",".join(modules))
        self._log = folder / "logs" / f"nursery-{name}.log"
        self._opening = asyncio.Lock()
        self._desk: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count()
        self._expected: dict[int, _Expected] = {}
        self._living: dict[int, Born] = {}

    async def bear(self, words: Sequence[str], output: int) -> Born:
        """A new process of a service: `words` as `services.runtime` takes them, `output` for all that it says.

        Raises:
            NotBorn: the nursery or the system cannot.
        """
        async with self._opening:
            desk = self._desk or await self._open()
        number, (leash, held) = next(self._numbers), os.pipe()
        expected = self._expected[number] = _Expected(asyncio.get_running_loop().create_future(), held)
        try:
            socket.send_fds(desk, [orjson.dumps({"number": number, "words": list(words)})], [output, leash])
        except OSError as error:
            self._fail(number, f"the nursery is gone: {error.strerror}")
        finally:
            os.close(leash)
        return await expected.born

    async def close(self) -> None:
        """End the nursery; who was born in it should have ended."""
        self._lose()
        if self._process is not None:
            await self._process.wait()

    async def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True
            )
        ours.setblocking(False)
        self._desk = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        return ours

    def _hear(self) -> None:
        """One message of the nursery's, or its end."""
        if self._desk is None:
            return
        try:
            message, handles, _, _ = socket.recv_fds(self._desk, MOST_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            message, handles = b"", []
        if not message:
            self._lose()
            return
        said = orjson.loads(message)
        if "code" in said:
            self._living.pop(said["pid"]).end(said["code"])
        elif "error" in said:
            self._fail(said["number"], said["error"])
        else:
            self._welcome(self._expected.pop(said["number"]), said["pid"], handles[0])

    def _welcome(self, expected: _Expected, pid: int, handle: int) -> None:
        born = self._living[pid] = Born(pid, handle, expected.leash)
        if expected.born.done():  # nobody waits for it any more
            born.send_signal(signal.SIGKILL)
        else:
            expected.born.set_result(born)

    def _fail(self, number: int, why: str) -> None:
        expected = self._expected.pop(number)
        os.close(expected.leash)
        if not expected.born.done():
            expected.born.set_exception(NotBorn(why))

    def _lose(self) -> None:
        """The nursery is gone, or is to go: nobody would tell any more how its processes end."""
        if self._desk is None:
            return
        asyncio.get_running_loop().remove_reader(self._desk)
        self._desk.close()
        self._desk = None
        for number in tuple(self._expected):
            self._fail(number, f"the nursery ended; see {self._log}")
        for born in self._living.values():
            with contextlib.suppress(ProcessLookupError):
                born.send_signal(signal.SIGKILL)
            born.end(-signal.SIGKILL)
        self._living.clear()
