"""The Docker engine's HTTP API on its socket: the few calls that a sandbox needs.

An engine of version 26 or newer (API 1.45: parts of volumes can be mounted). What it refuses is a `SandboxError` with
its own words in one line.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import aiohttp

from gyre.sandboxes.port import SandboxError

_VERSION = "/v1.45"
_HEADER_BYTES = 8  # stream, three zeros, the size in four bytes, big-endian
_MISSING, _CONFLICT, _OK = 404, 409, 400
_CALL_SECONDS = 60.0
_BROKEN = "docker: the output of a container broke off"


class NoContainer(SandboxError):
    """The container is not there, or it does not run: what was wanted of it is settled."""


class Engine:
    """A connection to an engine; made in a running event loop or before it, `close` it."""

    def __init__(self, socket: Path) -> None:
        """Nothing is asked yet."""
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Make a container; its id. `NoContainer` when the image, or something else that is named, is not there."""
        made = await self._call("POST", "/containers/create", {"name": name}, config)
        return str(made["Id"])

    async def start(self, container: str) -> None:
        """Start it."""
        await self._call("POST", f"/containers/{container}/start")

    async def wait(self, container: str) -> int:
        """Its exit code, once it has ended; however long that takes."""
        found = await self._call("POST", f"/containers/{container}/wait", timeout=None)
        return int(found["StatusCode"])

    async def kill(self, container: str, signal: str) -> None:
        """Send a signal to its main process. `NoContainer` when it runs no more."""
        await self._call("POST", f"/containers/{container}/kill", {"signal": signal})

    async def remove(self, container: str) -> None:
        """Kill it and forget it; one that is gone is well."""
        try:
            await self._call("DELETE", f"/containers/{container}", {"force": "1", "v": "1"})
        except NoContainer:  # or being removed by somebody else
            return

    async def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine says of it."""
        found: dict[str, Any] = await self._call("GET", f"/containers/{container}/json")
        return found

    async def processes(self, container: str) -> int:
        """How many processes and threads it has now; 0 when it runs no more."""
        try:
            found = await self._call("GET", f"/containers/{container}/stats", {"stream": "0", "one-shot": "1"})
        except NoContainer:
            return 0
        return int(found.get("pids_stats", {}).get("current", 0))

    async def labelled(self, label: str) -> list[dict[str, Any]]:
        """Every container with a label, running or not: "Id", "Labels", "Names"."""
        query = {"all": "1", "filters": json.dumps({"label": [label]})}
        found: list[dict[str, Any]] = await self._call("GET", "/containers/json", query)
        return found

    async def pull(self, image: str) -> None:
        """Fetch an image; may take minutes."""
        path, query = f"{_VERSION}/images/create", {"fromImage": image}
        async with self._asked("POST", path, params=query, timeout=aiohttp.ClientTimeout()) as answer:
            await _well(answer)
            async for line in answer.content:  # one that has failed begins with 200
                if said := json.loads(line or b"{}").get("error"):
                    raise SandboxError(f"image {image}: {said}")

    async def has_image(self, image: str) -> bool:
        """Whether it is on the engine's machine."""
        try:
            await self._call("GET", f"/images/{quote(image)}/json")
        except NoContainer:
            return False
        return True

    async def has(self, container: str, path: str) -> bool:
        """Whether there is a file in a container, running or not."""
        try:
            await self._call("HEAD", f"/containers/{container}/archive", {"path": path})
        except NoContainer:
            return False
        return True

    async def build(self, context: IO[bytes], query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """Build an image of a tar archive; what the engine says meanwhile. One that fails says "error" at its end."""
        path, kind = f"{_VERSION}/build", {"Content-Type": "application/x-tar"}
        how = {"params": query, "data": context, "headers": kind, "timeout": aiohttp.ClientTimeout()}
        async with self._asked("POST", path, **how) as answer:
            await _well(answer)
            rest = b""
            async for piece in answer.content.iter_any():  # its lines may be longer than a reader's buffer
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)

    @asynccontextmanager
    async def output(self, container: str) -> AsyncIterator[AsyncIterator[tuple[int, bytes]]]:
        """What a container writes from now on, until it ends, each piece with its stream: 1 is stdout, 2 stderr.

        Who reads slowly lets it write slowly. Reading on raises `SandboxError` where the stream breaks off.
        """
        path = f"{_VERSION}/containers/{container}/attach"
        query = {"stream": "1", "stdout": "1", "stderr": "1"}
        async with self._asked("POST", path, params=query, timeout=aiohttp.ClientTimeout()) as answer:
            await _well(answer)
            yield _frames(answer.content)

    async def close(self) -> None:
        """Hang up, for good."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = _CALL_SECONDS,
    ) -> Any:
        limit = aiohttp.ClientTimeout(total=timeout)
        async with self._asked(method, _VERSION + path, params=query, json=body, timeout=limit) as answer:
            await _well(answer)
            said = await answer.read()
            return json.loads(said) if said else None

    @asynccontextmanager
    async def _asked(self, method: str, path: str, **how: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._closed:
            raise SandboxError("docker: the sandbox is closed")
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self._socket), limit=0)
            self._session = aiohttp.ClientSession("http://docker", connector=connector)
        try:
            async with self._session.request(method, path, **how) as answer:
                yield answer
        except TimeoutError as error:
            raise SandboxError(f"docker: the engine at {self._socket} does not answer") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"docker: no engine can be asked at {self._socket}: {error}") from error


async def _well(answer: aiohttp.ClientResponse) -> None:
    if answer.status < _OK:
        return
    said = (await answer.read()).decode(errors="replace")
    try:
        said = json.loads(said)["message"]
    except (ValueError, KeyError):
        said = said.strip() or f"status {answer.status}"
    kind = NoContainer if answer.status in (_MISSING, _CONFLICT) else SandboxError
    raise kind(f"docker: {' '.join(said.split())}")


async def _frames(stream: aiohttp.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """The pieces of a stream that carries stdout and stderr in one."""
    try:
        while header := await _header(stream):
            size = int.from_bytes(header[4:])
            while size:
                piece = await stream.read(size)
                if not piece:
                    raise SandboxError(_BROKEN)
                size -= len(piece)
                yield header[0], piece
    except aiohttp.ClientError as error:
        raise SandboxError(f"{_BROKEN}: {error}") from error


async def _header(stream: aiohttp.StreamReader) -> bytes:
    """Empty at the stream's end."""
    try:
        return await stream.readexactly(_HEADER_BYTES)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise SandboxError(_BROKEN) from error
        return b""
