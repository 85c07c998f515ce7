"""A command in a pod of its own, somewhere in a Kubernetes cluster.

Its box is a part of the volume that holds the run folder, mounted at the same place; what it may call is said by a
label, and enforced by the network policies of deploy/kubernetes: the proxy, or nothing. Processes are bounded by the
node (`podPidsLimit`), single files by nobody but the box's size.

Pods say in annotations who made them. One that ends in order leaves none; what a killed one left is removed by whoever
of its kind comes next, or is there and looks every half minute, and ends at its own deadline where nobody does.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import re
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from pathlib import Path
from typing import Any

from gyre.config_containers import KubernetesSection
from gyre.sandboxes import owners
from gyre.sandboxes.kubernetes_api import Api, Closed, Later, NoPod, Outdated, Taken
from gyre.sandboxes.kubernetes_spec import COMPONENT, CONTAINER, OWNER, SANDBOX, Body, host_of
from gyre.sandboxes.owners import Reaper
from gyre.sandboxes.port import Command, Ended, Ending, Limits, SandboxError, started, starting
from gyre.sandboxes.watching import Output, first_ending, furnish, overfull, said_of

LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 1.0
_AGAIN_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
_LOGS_SECONDS = 30.0
_END_SECONDS = 60.0  # for a node to say that it has killed what it was told to kill
_SIGNALS = range(129, 160)
_REFUSALS = frozenset(
    {
        "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff",
        "InvalidImageName", "RunContainerError", "StartError",
    }
)  # fmt: skip
_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff"})
_NO_IMAGE = re.compile(
    "not found|does not exist|manifest unknown|denied|unauthorized|forbidden|no basic auth|x509", re.IGNORECASE
)
"""What a registry says that does not change by itself; a node asks again one that is away."""
_ENDINGS: Mapping[str, Ending] = {"OOMKilled": "memory", "DeadlineExceeded": "timeout", "Evicted": "disk"}


class KubernetesSandbox:
    """Implements `Sandbox`."""

    def __init__(
        self,
        chosen: KubernetesSection,
        image: str,
        limits: Limits,
        visible: tuple[Path, ...] = (),
        hidden: Path | None = None,
    ) -> None:
        """Nothing is asked of the cluster before the first command; `image`: where a command names none.

        Raises:
            SandboxError: this process is in no cluster, and no API server is named.
        """
        self._chosen, self._image, self._limits = chosen, image, limits
        self._body, self._api = Body(chosen, limits, visible, hidden), Api(chosen)
        self._owner = owners.Owner()
        self._numbers = itertools.count()
        self._live: set[str] = set()
        self._reaper = Reaper(self._reap)

    def address(self, url: str) -> str:
        """The same: the cluster's network leads there, and nowhere else."""
        return url

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Ended:
        """See `Sandbox`."""
        began = time.monotonic()
        user, group = (int(each) for each in self._chosen.user.split(":"))
        name = f"gyre-{self._owner.name}-{next(self._numbers)}"
        with starting(command.arguments[0]):
            await asyncio.to_thread(furnish, command.box, user, group)
        self._live.add(name)
        try:
            return await self._run(await self._made(command, name, stop), command, stop, began)
        finally:
            self._live.discard(name)
            try:
                await self._api.delete(name, 0)
            except SandboxError as error:  # the result counts; whoever looks next finds it
                LOG.warning("%s", error)

    async def end_leftovers(self, box: Path) -> int:
        """See `Sandbox`."""
        found = [each for each in await self._all() if _owner_of(each).get(owners.BOX) == str(box)]
        await asyncio.gather(*(self._api.delete(each["metadata"]["name"], 0) for each in found))
        return len(found)

    async def close(self) -> None:
        """See `Sandbox`."""
        await self._reaper.stop()
        if self._reaper.begun:
            with contextlib.suppress(SandboxError):
                for each in await self._api.labelled(f"{OWNER}={self._owner.name}"):
                    await self._api.delete(each["metadata"]["name"], 0)
        await self._api.close()
        self._owner.close()

    async def _reap(self) -> None:
        for each in await self._all():
            name = each["metadata"]["name"]
            if self._owner.left(_owner_of(each), name in self._live):
                LOG.warning("pod %s: nobody waits for it; removed", name)
                await self._api.delete(name, 0)

    async def _all(self) -> list[dict[str, Any]]:
        return await self._api.labelled(f"{COMPONENT}={SANDBOX}")

    async def _made(self, command: Command, name: str, stop: asyncio.Event | None) -> dict[str, Any]:
        """Have its pod made; a proxy or an API server that moves, or a quota that is used up, costs no execution."""
        until = time.monotonic() + self._chosen.schedule_seconds
        for pause in itertools.chain(_AGAIN_PAUSES, itertools.repeat(_AGAIN_PAUSES[-1])):
            try:
                with starting(command.arguments[0]):
                    return await self._asked(command, name)
            except Later as error:
                if time.monotonic() + pause > until or (stop is not None and stop.is_set()):
                    raise
                LOG.warning("pod %s: cannot be made: %s; asking again", name, error)
                await _paused(pause, stop)
        raise AssertionError("there is always another pause")

    async def _asked(self, command: Command, name: str) -> dict[str, Any]:
        await self._reaper.begin()
        pod = await self._pod(command, name)
        try:
            return await self._api.create(pod)
        except Taken:  # no one else uses this name: it was made, and the answer was lost
            return await self._api.get(name)

    async def _pod(self, command: Command, name: str) -> dict[str, Any]:
        image = command.image or self._image
        if not image:
            raise SandboxError("sandbox.image: empty, and the task names none; set it to an image with its tools")
        hosts = await _hosts(command.reach)
        owner = self._owner.labels(command.box, command.deadline_seconds + command.grace_seconds)
        return self._body.of(command, image, name, owner, hosts)

    async def _run(self, pod: dict[str, Any], command: Command, stop: asyncio.Event | None, began: float) -> Ended:
        name, output, runs = pod["metadata"]["name"], Output(self._limits), asyncio.Event()
        waits: list[str] = []
        following = asyncio.create_task(self._follow(pod, runs, waits))
        try:
            await self._started(following, runs, name, waits)
            with started():
                ending, code = await self._ending(following, command, stop, name, output)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        reason = said_of(ending, command.deadline_seconds, self._limits)
        return Ended(ending, code, time.monotonic() - began, bytes(output.kept), reason)

    async def _ending(
        self,
        following: "asyncio.Task[dict[str, Any]]",
        command: Command,
        stop: asyncio.Event | None,
        name: str,
        output: Output,
    ) -> tuple[Ending, int | None]:
        """Wait for whatever ends it first, and see to its end; its exit code, too."""
        limits: dict[Ending, Awaitable[None]] = {"disk": overfull(command.box, self._limits)}
        ending = await first_ending(following, command, stop, limits)
        if ending != "exited":
            return ending, await self._end(following, command, name, output)
        await self._read(name, output, follow=False)
        return _ending_of(following.result())

    async def _started(
        self, following: "asyncio.Task[dict[str, Any]]", runs: asyncio.Event, name: str, waits: list[str]
    ) -> None:
        """Wait until the command runs, or has run. Raises `SandboxError` where it cannot or takes too long."""
        running = asyncio.create_task(runs.wait())
        either: list[asyncio.Future[Any]] = [following, running]
        try:
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(either, timeout=self._chosen.schedule_seconds, return_when=first)
        finally:
            running.cancel()
        if not done:
            why = waits[-1] if waits else "see its events"
            raise SandboxError(f"pod {name}: has not started within {self._chosen.schedule_seconds} s; {why}"[:300])
        if not runs.is_set():
            _ending_of(following.result())  # with no word of its command, it never ran

    async def _follow(self, pod: dict[str, Any], runs: asyncio.Event, waits: list[str]) -> dict[str, Any]:
        """Returns a pod once its command has ended; `waits` gets what for. Raises `SandboxError`."""
        async with contextlib.aclosing(self._changes(pod)) as changes:
            async for now in changes:
                state = _state_of(now)
                if "terminated" in state or now["status"].get("phase") in ("Succeeded", "Failed"):
                    return now
                if "running" in state:
                    runs.set()
                waiting = state.get("waiting", {})
                why, words = waiting.get("reason", ""), waiting.get("message", "")
                waits[:] = [f"{why}: {words}"] if words else waits
                if why in _REFUSALS and (why not in _PULLS or _NO_IMAGE.search(words)):
                    image = now["spec"]["containers"][0]["image"]
                    raise SandboxError(f"image {image}: {why}: {words}"[:300])
        raise AssertionError("a pod changes until it is deleted, which raises")

    async def _changes(self, pod: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """A pod as it is, and each time it changes, also where the server forgets or goes away. Raises `NoPod`."""
        yield pod
        name = pod["metadata"]["name"]
        while True:
            try:
                async with contextlib.aclosing(self._api.watch(name, pod["metadata"]["resourceVersion"])) as news:
                    async for now in news:
                        pod = now
                        yield pod
                pod = await self._api.get(name)
                yield pod
            except Outdated:
                pod["metadata"]["resourceVersion"] = "0"  # any recent state will do
            except (NoPod, Closed):
                raise
            except SandboxError as error:
                LOG.warning("%s; asking again", error)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _end(
        self, following: "asyncio.Task[dict[str, Any]]", command: Command, name: str, output: Output
    ) -> int | None:
        """Ask the command to end, then have it killed; its exit code, if the node told."""
        reading = asyncio.create_task(self._read(name, output, follow=True))
        try:
            await self._asked_to_end(name, math.ceil(command.grace_seconds))
            await asyncio.wait({following}, timeout=command.grace_seconds + _END_SECONDS)
            await asyncio.wait({reading}, timeout=_AGAIN_SECONDS)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        try:
            return _ending_of(following.result())[1] if following.done() else None
        except NoPod:
            return None

    async def _asked_to_end(self, name: str, grace_seconds: int) -> None:
        """An API server that does not answer for a while (it is replaced, say) costs no work."""
        for pause in _AGAIN_PAUSES:
            try:
                return await self._api.delete(name, grace_seconds)
            except Closed:
                raise
            except SandboxError as error:
                LOG.warning("pod %s: cannot be told to end: %s; asking again", name, error)
                await asyncio.sleep(pause)
        return await self._api.delete(name, grace_seconds)

    async def _read(self, name: str, output: Output, *, follow: bool) -> None:
        """The end of its output; a node that does not give it costs the output, not the execution."""
        try:
            async with asyncio.timeout(None if follow else _LOGS_SECONDS):
                async with contextlib.aclosing(self._api.output(name, CONTAINER, follow)) as pieces:
                    await output.take(pieces)
        except (SandboxError, TimeoutError) as error:
            LOG.warning("pod %s: its output cannot be read: %s", name, error)


def _owner_of(pod: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return found


def _state_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((each.get("state", {}) for each in statuses if each["name"] == CONTAINER), {})


def _ending_of(pod: Mapping[str, Any]) -> tuple[Ending, int | None]:
    """How a pod's command ended, and its exit code; negative: the signal."""
    ended = _state_of(pod).get("terminated", {})
    code = ended.get("exitCode")
    why = pod["status"].get("reason") or ended.get("reason") or ""
    if code is None and why not in _ENDINGS:
        raise SandboxError(f"pod {pod['metadata']['name']}: ended without a word of its command: {why or 'no reason'}")
    return _ENDINGS.get(why, "exited"), 128 - code if code in _SIGNALS else code


async def _paused(seconds: float, stop: asyncio.Event | None) -> None:
    """Wait, unless it is to stop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await (stop or asyncio.Event()).wait()


async def _hosts(reach: str) -> dict[str, str]:
    """Address -> name of what is reached, so that a pod needs no name server. Raises `Later`."""
    host = host_of(reach)
    if not host:
        return {}
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Later(f"{reach}: its host is not known here: {error}") from error
    return {str(each[4][0]): host for each in found if str(each[4][0]) != host}
