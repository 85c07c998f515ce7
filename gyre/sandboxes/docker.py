"""A command in a container of its own, beside this process: a sibling, made by the Docker engine.

Nothing is shared with it but its box and what it may see: no capability, no way to gain one, a root that cannot be
written, a user that is not root, no network. Where it may reach something, it shares the empty network of a second
container, the door: that one only hands a listening socket out to this process (`doorway`), so that any image will do
for the command. Starting and ending one costs about half a second, and a door as much again.

Containers are labelled with their owner. One that ends in order leaves none; what a killed one left is removed by
whoever of its kind comes next, or is there and looks every half minute.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gyre.config_containers import DockerSection
from gyre.sandboxes import doorway
from gyre.sandboxes.docker_engine import Engine, NoContainer
from gyre.sandboxes.docker_gate import SHELL, Gate
from gyre.sandboxes.docker_spec import LABEL, Body
from gyre.sandboxes.family import descendants
from gyre.sandboxes.owners import BOX, DOOR, Owner, Reaper
from gyre.sandboxes.port import Command, Ended, Ending, Limits, SandboxError, started, starting
from gyre.sandboxes.watching import Output, first_ending, furnish, overfull, said_of

LOG = logging.getLogger(__name__)
_NOBODY = "65534:65534"
_SIGNALS = range(129, 160)
_HEAR_SECONDS = 60.0  # for an engine to pass on what a container says
_AGAIN_SECONDS = 0.1
_PULL_SECONDS = 3600.0
_OPEN = "import signal; print('open', flush=True); signal.pause()"


class DockerSandbox:
    """Implements `Sandbox`."""

    def __init__(
        self,
        chosen: DockerSection,
        image: str,
        limits: Limits,
        visible: tuple[Path, ...] = (),
        hidden: Path | None = None,
    ) -> None:
        """Nothing is asked of the engine before the first command; `image`: where a command names none."""
        self._chosen, self._image, self._limits = chosen, image, limits
        self._user = chosen.user or (f"{os.getuid()}:{os.getgid()}" if os.getuid() else _NOBODY)
        self._body = Body(limits, self._user, chosen.mounts, chosen.scratch_mb, visible, hidden)
        self._engine = Engine(Path(chosen.socket))
        self._owner = Owner()
        self._numbers = itertools.count()
        self._live: set[str] = set()
        self._shells: dict[str, bool] = {}
        self._asking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reaper = Reaper(self._reap)

    def address(self, url: str) -> str:
        """At its own loopback, where its doorway listens."""
        return doorway.inside(url)

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Ended:
        """See `Sandbox`."""
        began = time.monotonic()
        await self._reaper.begin()
        with starting(command.arguments[0]):
            await asyncio.to_thread(furnish, command.box, *(int(each) for each in self._user.split(":")))
            async with self._container(command) as (container, gate):
                return await self._run(container, gate, command, stop, began)

    async def end_leftovers(self, box: Path) -> int:
        """See `Sandbox`."""
        found = [each for each in await self._engine.labelled(LABEL) if each["Labels"].get(BOX) == str(box)]
        await asyncio.gather(*(self._engine.remove(each["Id"]) for each in found))
        return len(found)

    async def close(self) -> None:
        """See `Sandbox`."""
        await self._reaper.stop()
        if self._reaper.begun:
            with contextlib.suppress(SandboxError):
                for each in await self._engine.labelled(f"gyre.owner={self._owner.name}"):
                    await self._engine.remove(each["Id"])
        await self._engine.close()
        self._owner.close()

    async def _reap(self) -> None:
        for each in await self._engine.labelled(LABEL):
            name = each["Names"][0].lstrip("/")
            if self._owner.left(each["Labels"], name in self._live):
                LOG.warning("container %s: nobody waits for it; removed", name)
                await self._engine.remove(each["Id"])
                if door := each["Labels"].get(DOOR):
                    await asyncio.to_thread(_forget, Path(door))

    @contextlib.asynccontextmanager
    async def _container(self, command: Command) -> AsyncIterator[tuple[str, Gate]]:
        """A container for a command, not started yet; removed at the end, whatever happens."""
        image = command.image or self._image
        if not image:
            raise SandboxError("sandbox.image: empty, and the task names none; set it to an image with its tools")
        name = f"gyre-{self._owner.name}-{next(self._numbers)}"
        seconds = command.deadline_seconds + command.grace_seconds
        gate = Gate(name if await self._has_shell(image, f"{name}-shell", command.box) else "")
        labels = self._owner.labels(command.box, seconds)
        async with self._network(command, f"{name}-door", labels) as network:
            waits = replace(command, arguments=gate.before(command.arguments))
            body = self._body.of(waits, image, labels, network)
            async with self._alive(name):
                yield await self._made(name, body, image), gate

    async def _has_shell(self, image: str, name: str, box: Path) -> bool:
        """Asked once an image, of a container that is never started; it may have to be pulled, as others meanwhile."""
        async with self._asking[image]:
            if image not in self._shells:
                async with self._alive(name):
                    labels = self._owner.labels(box, _PULL_SECONDS)
                    container = await self._made(name, self._body.bare(SHELL, labels, image), image)
                    self._shells[image] = await self._engine.has(container, SHELL)
                if not self._shells[image]:
                    LOG.warning(
                        "image %s: has no %s: what ends at once may lose its output in the engine", image, SHELL
                    )
            return self._shells[image]

    @contextlib.asynccontextmanager
    async def _network(self, command: Command, name: str, labels: Mapping[str, str]) -> AsyncIterator[str]:
        """What a command has for a network: none, or that of a door which listens already."""
        if not command.reach:
            yield "none"
            return
        folder = command.box.parent / f".{name}"
        folder.mkdir(mode=0o700)
        try:
            async with doorway.doorway(command.reach, folder) as door, self._alive(name):
                yield f"container:{await self._opened(name, door, labels)}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _opened(self, name: str, door: Path, labels: Mapping[str, str]) -> str:
        image = self._chosen.door_image or self._image
        program = ("python3", "-I", "-S", "-c")
        arguments = (*program, doorway.ENTER.read_text(), str(door), str(doorway.PORT), *program, _OPEN)
        body = self._body.door(arguments, door.parent, image, {**labels, DOOR: str(door.parent)})
        container = await self._made(name, body, image)
        async with self._engine.output(container) as pieces:
            await self._engine.start(container)
            _, said = await anext(pieces, (0, b"it ended"))
        if said.strip() != b"open":
            raise SandboxError(
                f"sandbox.docker.door_image: {image} opened no door: {said.decode(errors='replace')}"[:300]
            )
        return container

    @contextlib.asynccontextmanager
    async def _alive(self, name: str) -> AsyncIterator[None]:
        """For as long as somebody waits for a container of this name; then there is none, whatever happened."""
        self._live.add(name)
        try:
            yield
        finally:
            self._live.discard(name)
            try:
                await self._engine.remove(name)
            except SandboxError as error:  # the result counts; whoever looks next finds it
                LOG.warning("container %s: cannot be removed: %s", name, error)

    async def _made(self, name: str, body: dict[str, object], image: str) -> str:
        try:
            return await self._engine.create(name, body)
        except NoContainer as error:
            if "No such image" not in str(error):
                raise
        if self._chosen.pull == "never":
            raise SandboxError(
                f"image {image}: is not on this machine, and none is fetched; `docker pull {image}`, or set "
                'sandbox.docker.pull = "missing"'
            )
        await self._engine.pull(image)
        return await self._engine.create(name, body)

    async def _run(
        self, container: str, gate: Gate, command: Command, stop: asyncio.Event | None, began: float
    ) -> Ended:
        output = Output(self._limits)
        async with self._engine.output(container) as frames:
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(output.take(gate.after(frames)))]
            try:
                await self._started(container, gate, command)
                with started():
                    await self._let_through(container, gate)
                    tasks.append(exited := asyncio.create_task(self._engine.wait(container)))
                    ending = await self._ending(container, exited, command, stop, output)
                    code = await exited
                    await tasks[0]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        with started():  # tests that failed for lack of memory must not be taken for tests that failed
            if ending == "exited" and code and await self._lacked_memory(container):
                ending = "memory"
        reason = said_of(ending, command.deadline_seconds, self._limits)
        status = 128 - code if code in _SIGNALS else code
        return Ended(ending, status, time.monotonic() - began, bytes(output.kept), reason)

    async def _started(self, container: str, gate: Gate, command: Command) -> None:
        """It waits at its gate, and is heard there. Raises `SandboxError`: it never ran."""
        name = f"command {command.arguments[0]!r}: cannot be started"
        try:
            await self._engine.start(container)
            async with asyncio.timeout(_HEAR_SECONDS):
                await gate.heard.wait()
        except TimeoutError as error:
            raise SandboxError(f"{name}: the engine passes nothing of it on within {_HEAR_SECONDS:g} s") from error
        except SandboxError as error:
            raise SandboxError(f"{name}: {error}") from error
        if gate.over:
            raise SandboxError(f"{name}: its container ended before it began")

    async def _let_through(self, container: str, gate: Gate) -> None:
        """Have it begin; told again where it had not stopped yet."""
        try:
            async with asyncio.timeout(_HEAR_SECONDS):
                while not gate.passed.is_set():
                    with contextlib.suppress(NoContainer):
                        await self._engine.kill(container, "SIGCONT")
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_AGAIN_SECONDS):
                            await gate.passed.wait()
        except TimeoutError as error:
            raise SandboxError(f"docker: {container[:12]} was told to begin, and says nothing of it") from error

    async def _ending(
        self,
        container: str,
        exited: "asyncio.Task[int]",
        command: Command,
        stop: asyncio.Event | None,
        output: Output,
    ) -> Ending:
        """Wait for whatever ends it first; if that is not itself, ask it to end, then kill it."""
        limits: dict[Ending, Awaitable[None]] = {
            "disk": self._overfull(container, command.box),
            "processes": self._crowded(container),
            "output": output.too_much(),
        }
        ending = await first_ending(exited, command, stop, limits)
        if ending != "exited":
            with contextlib.suppress(NoContainer):
                await self._engine.kill(container, "SIGTERM")
                await asyncio.wait({exited}, timeout=command.grace_seconds)
                await self._engine.kill(container, "SIGKILL")
        return ending

    async def _overfull(self, container: str, box: Path) -> None:
        """Returns when it holds more than it may; what it deleted counts where its processes are seen here."""
        first = (await self._engine.inspect(container))["State"]["Pid"]
        await overfull(box, self._limits, lambda: _seen(container, first))

    async def _crowded(self, container: str) -> None:
        """Returns when it has as many processes as it may."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            try:
                if await self._engine.processes(container) >= self._limits.processes:
                    return
            except SandboxError as error:  # the kernel holds it to that, too: not worth its work
                LOG.warning("container %s: its processes cannot be counted: %s; asking again", container[:12], error)

    async def _lacked_memory(self, container: str) -> bool:
        return bool((await self._engine.inspect(container))["State"]["OOMKilled"])


def _seen(container: str, first: int) -> tuple[int, ...]:
    """The processes of a container, where `first` is its first one here too and not only on the engine's machine."""
    try:
        ours = container in Path(f"/proc/{first}/cgroup").read_text()
    except OSError:
        return ()
    return (first, *descendants(first)) if ours else ()


def _forget(door: Path) -> None:
    """The folder of a door that nobody holds any more, where it is seen here."""
    with contextlib.suppress(OSError):
        (door / "door").unlink(missing_ok=True)
        door.rmdir()
