"""The API server of a Kubernetes cluster: the few calls about pods that a sandbox needs.

What it refuses is a `SandboxError` with its own words in one line.
"""

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from os import environ
from pathlib import Path
from typing import Any

import aiohttp

from gyre.config_containers import KubernetesSection
from gyre.sandboxes.port import SandboxError

_CALL_SECONDS = 60.0
_WATCH_SECONDS = 300
_OK, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _GONE, _TOO_MANY, _SERVERS_OWN = 400, 403, 404, 409, 410, 429, 500
_LINE_BYTES = 1 << 22  # a pod with its whole status
_PIECE_BYTES = 1 << 16
_HANG_UPS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)
_DISTRUST = (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError)


class NoPod(SandboxError):
    """The pod is not there."""


class Closed(SandboxError):
    """Somebody has closed the sandbox meanwhile."""


class Outdated(SandboxError):
    """The server has forgotten what happened since: ask for what is."""


class Taken(SandboxError):
    """There is a pod of that name."""


class Later(SandboxError):
    """Not now, though nothing is wrong with what was asked: the same may be well a moment later."""


class Api:
    """Pods of one namespace; `close` it."""

    def __init__(self, chosen: KubernetesSection) -> None:
        """Nothing is asked yet. Raises `SandboxError` outside a cluster where no URL is configured."""
        self._base = chosen.url or _inside()
        self._pods = f"/api/v1/namespaces/{chosen.namespace}/pods"
        self._token, self._authority = Path(chosen.token_file), chosen.ca_file
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def create(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Make a pod; as it is then. Raises `Taken`, `Later`: that one may have been made nevertheless."""
        return await self._call("POST", self._pods, body=pod)

    async def get(self, name: str) -> dict[str, Any]:
        """A pod as it is. Raises `NoPod`."""
        return await self._call("GET", f"{self._pods}/{name}")

    async def delete(self, name: str, grace_seconds: int) -> None:
        """Ask a pod to end within that time, then kill and forget it; one that is gone is well."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_seconds}
        try:
            await self._call("DELETE", f"{self._pods}/{name}", body=options)
        except NoPod:
            return

    async def labelled(self, selector: str) -> list[dict[str, Any]]:
        """Every pod that a selector of labels matches."""
        found: list[dict[str, Any]] = (await self._call("GET", self._pods, {"labelSelector": selector}))["items"]
        return found

    async def watch(self, name: str, version: str) -> AsyncGenerator[dict[str, Any]]:
        """A pod each time it changes after `version`, until the server ends the watch; then ask again.

        Raises:
            NoPod: it was deleted.
            Outdated: the server does not go back that far.
        """
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        async with self._asked("GET", self._pods, query, None, _WATCH_SECONDS + _CALL_SECONDS) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise (Outdated if event["object"].get("code") == _GONE else SandboxError)(_words(event["object"]))
                if event["type"] != "BOOKMARK":
                    yield event["object"]
                if event["type"] == "DELETED":
                    raise NoPod(f"pod {name}: was deleted")

    async def output(self, name: str, container: str, follow: bool) -> AsyncGenerator[bytes]:
        """The end of what a container has written, and with `follow` what it still writes. Raises `NoPod`."""
        query = {"container": container, "tailLines": "2000", **({"follow": "true"} if follow else {})}
        async with self._asked("GET", f"{self._pods}/{name}/log", query, None, None) as answer:
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                yield piece

    async def close(self) -> None:
        """Hang up, for good."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        async with self._asked(method, path, query, body, _CALL_SECONDS) as answer:
            found: dict[str, Any] = json.loads(await answer.read())
            return found

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, seconds: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._closed:
            raise Closed("kubernetes: the sandbox is closed")
        try:
            session, headers = self._connected(), {"Authorization": f"Bearer {self._token.read_text().strip()}"}
            limit = aiohttp.ClientTimeout(total=seconds)
            async with session.request(method, path, params=query, json=body, headers=headers, timeout=limit) as answer:
                await _well(answer)
                yield answer
        except TimeoutError as error:
            raise Later(f"kubernetes: {self._base} does not answer") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind = Later if isinstance(error, _HANG_UPS) and not isinstance(error, _DISTRUST) else SandboxError
            raise kind(f"kubernetes: {self._base} cannot be asked: {error}") from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            secure = self._base.startswith("https:")
            trust = ssl.create_default_context(cafile=self._authority) if secure else False
            connector = aiohttp.TCPConnector(ssl=trust, limit=0)
            self._session = aiohttp.ClientSession(self._base, connector=connector, read_bufsize=_LINE_BYTES)
        return self._session


def _inside() -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SandboxError("sandbox.kubernetes.url: empty, and this process is in no cluster; name the API server")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


async def _well(answer: aiohttp.ClientResponse) -> None:
    if answer.status < _OK:
        return
    said = await answer.read()
    try:
        told = json.loads(said)
        words = _words(told)
    except (ValueError, AttributeError):
        told, words = {}, said.decode(errors="replace").strip() or f"status {answer.status}"
    raise _kind(answer.status, told)(f"kubernetes: {' '.join(words.split())}")


def _kind(code: int, status: Mapping[str, Any]) -> type[SandboxError]:
    """What a refusal means. A quota frees itself as other pods end; two that count in it at once collide (409)."""
    if code == _CONFLICT:
        return Taken if status.get("reason") == "AlreadyExists" else Later
    if code == _FORBIDDEN and "exceeded quota" in _words(status):
        return Later
    if code == _TOO_MANY or code >= _SERVERS_OWN:
        return Later
    return {_NOT_FOUND: NoPod, _GONE: Outdated}.get(code, SandboxError)


def _words(status: Mapping[str, Any]) -> str:
    return str(status.get("message") or status.get("reason") or "no reason given")
