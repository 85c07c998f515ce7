"""A stand-in for a Kubernetes cluster: NOT one.

It holds what it is sent to the API's own schemas and to what the strictest pod security profile asks for, speaks the
watch protocol with its gaps, and runs a pod's command as a plain process of this machine. Volumes, images, networks and
limits are only checked, never made.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests import kubernetes_schema

NAMESPACE = "gyre-sandboxes"
TOKEN = "a-service-account"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PULLED = "failed to do request: dial tcp: lookup registry.example.org: no such host"
Pod = dict[str, Any]


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def refused(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(status(code, reason, message), status=code)


def trouble(pod: Pod) -> str:
    """Why the API server would not take it: its schema, or the profile "restricted"."""
    if why := kubernetes_schema.trouble(pod):
        return why
    spec = pod["spec"]
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        own = {**spec.get("securityContext", {}), **each.get("securityContext", {})}
        held = (
            own.get("runAsNonRoot") is True
            and own.get("allowPrivilegeEscalation") is False
            and own.get("capabilities", {}).get("drop") == ["ALL"]
            and own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost")
        )
        if not held:
            return f'violates PodSecurity "restricted:latest": container {each["name"]}'
    volumes = {each["name"] for each in spec.get("volumes", ())}
    missing = {mount["name"] for each in spec["containers"] for mount in each.get("volumeMounts", ())} - volumes
    return f"spec.containers[0].volumeMounts: not found: {missing}" if missing else ""


@dataclass
class Run:
    """A pod on its node."""

    pod: Pod
    output: bytearray = field(default_factory=bytearray)
    process: asyncio.subprocess.Process | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: bool = False


class Cluster:
    """Pods, and what was said of them."""

    def __init__(self) -> None:
        self.url = ""
        self.runs: dict[str, Run] = {}
        self.made: list[Pod] = []
        """Every pod that was taken, as it was sent."""
        self.fate: dict[str, Any] = {}
        """Of the next command that ends: instead of its own `terminated`."""
        self.unwilling: set[str] = set()
        """Images that no node finds."""
        self.slow: set[str] = set()
        """Images whose registry is away when a node asks first."""
        self.preempted: set[str] = set()
        """Images whose pods make room for others before they start."""
        self.deaf = 0
        """Deletions to answer with an error."""
        self.refusals: list[tuple[int, str, str]] = []
        """Creations to refuse: status, reason and words of each."""
        self.hang_ups = 0
        """Creations that are done, and then not answered."""
        self.cut = 0
        """Watches to end before they say anything."""
        self.forgotten = 0
        """Watches may not begin before this version."""
        self._version = 1000
        self._said: list[tuple[int, str, Pod]] = []
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def say(self, kind: str, pod: Pod) -> None:
        async with self._news:
            self._version += 1
            pod["metadata"]["resourceVersion"] = str(self._version)
            self._said.append((self._version, kind, json.loads(json.dumps(pod))))
            self._news.notify_all()

    async def create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        if self.refusals:
            return refused(*self.refusals.pop(0))
        if why := trouble(pod):
            return refused(422, "Invalid", f"Pod is invalid: {why}")
        name = pod["metadata"]["name"]
        if name in self.runs:
            return refused(409, "AlreadyExists", f'pods "{name}" already exists')
        self.made.append(json.loads(json.dumps(pod)))
        pod["metadata"]["uid"] = f"uid-{len(self.made)}"
        pod["status"] = {"phase": "Pending"}
        run = self.runs[name] = Run(pod)
        await self.say("ADDED", pod)
        answer = web.json_response(pod, status=201)
        task = asyncio.create_task(self._node(run))
        self._tasks.add(task)
        if self.hang_ups and request.transport is not None:
            self.hang_ups -= 1
            request.transport.close()
        return answer

    async def one(self, request: web.Request) -> web.Response:
        run = self.runs.get(request.match_info["name"])
        return web.json_response(run.pod) if run else refused(404, "NotFound", "pods not found")

    async def many(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watched(request)
        wanted = dict(each.split("=") for each in request.query["labelSelector"].split(","))
        found = [run.pod for run in self.runs.values() if wanted.items() <= run.pod["metadata"]["labels"].items()]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "items": found})

    async def delete(self, request: web.Request) -> web.Response:
        if self.deaf:
            self.deaf -= 1
            return refused(503, "ServiceUnavailable", "the API server is being replaced")
        run, options = self.runs.get(request.match_info["name"]), await request.json()
        if run is None:
            return refused(404, "NotFound", "pods not found")
        run.deleted = True
        task = asyncio.create_task(self._ended(run, options["gracePeriodSeconds"]))
        self._tasks.add(task)
        await asyncio.sleep(0)
        return web.json_response(run.pod)

    async def log(self, request: web.Request) -> web.StreamResponse:
        run = self.runs.get(request.match_info["name"])
        if run is None:
            return refused(404, "NotFound", "pods not found")
        answer = web.StreamResponse()
        await answer.prepare(request)
        if request.query.get("follow"):
            await run.ended.wait()
        lines = bytes(run.output).splitlines(keepends=True)[-int(request.query["tailLines"]) :]
        await answer.write(b"".join(lines))
        return answer

    async def lose(self) -> None:
        """The nodes go, with all that runs there, and say nothing of how it ended."""
        async with self._news:
            await self._news.wait_for(
                lambda: all(run.pod["status"]["phase"] == "Running" for run in self.runs.values())
            )
        for name in tuple(self.runs):
            run = self.runs.pop(name)
            await self.say("DELETED", run.pod)
            kill(run, signal.SIGKILL)

    async def close(self) -> None:
        for run in self.runs.values():
            kill(run, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        since = int(request.query["resourceVersion"])
        answer = web.StreamResponse()
        await answer.prepare(request)
        if self.cut:
            self.cut -= 1
            return answer
        if 0 < since < self.forgotten:
            gone = {"type": "ERROR", "object": status(410, "Expired", "too old resource version")}
            await answer.write(json.dumps(gone).encode() + b"\n")
            return answer
        if since == 0 and name in self.runs:
            since = self._version
            await self._tell(answer, "ADDED", self.runs[name].pod)
        await self._tell(answer, "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(since)}})
        while True:
            since, news = await self._news_since(since)
            for kind, pod in news:
                if pod["metadata"]["name"] == name:
                    await self._tell(answer, kind, pod)

    async def _news_since(self, since: int) -> tuple[int, list[tuple[str, Pod]]]:
        async with self._news:
            await self._news.wait_for(lambda: self._version > since)
            return self._version, [(kind, pod) for version, kind, pod in self._said if version > since]

    @staticmethod
    async def _tell(answer: web.StreamResponse, kind: str, found: Pod) -> None:
        await answer.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

    async def _node(self, run: Run) -> None:
        """What a node does with a pod."""
        container = run.pod["spec"]["containers"][0]
        if container["image"] in self.unwilling:
            state = {"waiting": {"reason": "ErrImagePull", "message": f"{container['image']}: not found"}}
            await self._state(run, state, "Pending")
            return
        if container["image"] in self.slow:
            for reason, message in (("ErrImagePull", PULLED), ("ImagePullBackOff", "Back-off pulling image")):
                await self._state(run, {"waiting": {"reason": reason, "message": message}}, "Pending")
        if container["image"] in self.preempted:
            run.pod["status"] = {"phase": "Failed", "reason": "Preempting"}
            await self.say("MODIFIED", run.pod)
            return
        env = {each["name"]: expanded(each["value"], {}) for each in container["env"]}
        run.process = await asyncio.create_subprocess_exec(
            *(expanded(word, env) for word in container["command"]),
            cwd=container["workingDir"],
            env={"PATH": os.environ["PATH"], **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        await self._state(run, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "Running")
        assert run.process.stdout is not None
        async for line in run.process.stdout:
            run.output += line
        code = await run.process.wait()
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", **self.fate}
        kill(run, signal.SIGKILL)
        run.ended.set()
        await self._state(run, {"terminated": ended}, "Failed" if code else "Succeeded")

    async def _ended(self, run: Run, grace: int) -> None:
        if not grace:  # the API forgets it at once, whatever its node does
            self.runs.pop(run.pod["metadata"]["name"], None)
        if run.process is not None and not run.ended.is_set():
            kill(run, signal.SIGTERM if grace else signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.ended.wait(), grace)
            kill(run, signal.SIGKILL)
            await run.ended.wait()
        self.runs.pop(run.pod["metadata"]["name"], None)
        await self.say("DELETED", run.pod)

    async def _state(self, run: Run, state: dict[str, Any], phase: str) -> None:
        run.pod["status"] = {"phase": phase, "containerStatuses": [{"name": "command", "state": state}]}
        await self.say("MODIFIED", run.pod)


def kill(run: Run, number: int) -> None:
    if run.process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid, number)


def expanded(text: str, env: dict[str, str]) -> str:
    """$(NAME) and $$, as the API's documentation has it."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


@web.middleware
async def known(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return refused(401, "Unauthorized", "Unauthorized")
    found: web.StreamResponse = await handler(request)
    return found


@contextlib.asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """One with no pods; the token of its service account lies in the folder."""
    (folder / "token").write_text(TOKEN)
    cluster, app = Cluster(), web.Application(middlewares=[known])
    one = PODS + "/{name}"
    app.add_routes([web.post(PODS, cluster.create), web.get(PODS, cluster.many), web.get(one, cluster.one)])
    app.add_routes([web.delete(one, cluster.delete), web.get(one + "/log", cluster.log)])
    async with TestServer(app, host="127.0.0.1", shutdown_timeout=0.1) as server:
        cluster.url = f"http://127.0.0.1:{server.port}"
        yield cluster
        await cluster.close()
