"""The HTTP side of an SGLang server: one method an endpoint, errors in the port's words."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from gyre.engines.port import EngineFailed, EngineUnavailable, RequestRefused, WeightsRefused
from gyre.engines.sglang.wire import Done, Generated, Loads, ModelInfo, ServerInfo

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""For what the server only has to note."""
WEIGHTS_SECONDS = 600.0
MEMORY_SECONDS = 120.0
_IDLE_PAUSE_SECONDS = 0.01

Form = TypeVar("Form", bound=BaseModel)


class Client:
    """A server at a URL."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet."""
        self.url = url.rstrip("/")
        self._opened: aiohttp.ClientSession | None = None

    async def generate(self, body: Mapping[str, Any]) -> Generated:
        """`/generate`: as long as it takes. Cancelling it hangs up, by which the server aborts the request.

        Raises:
            RequestRefused: the server finds fault with the request.
            EngineFailed: it broke over it.
            EngineUnavailable: nobody answers.
        """
        status, answer = await self._ask("/generate", body, None)
        if status >= 500:  # noqa: PLR2004  the server's own fault
            raise EngineFailed(f"SGLang at {self.url} answered {status}: {_said(answer)}")
        if status >= 400:  # noqa: PLR2004  the request's
            raise RequestRefused(f"SGLang at {self.url}: {_said(answer)}")
        return self._read(Generated, answer)

    async def abort(self, rid: str) -> None:
        """`/abort_request`: of every request whose id begins so."""
        await self._done("/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """`/abort_request`: of every request that the server has."""
        await self._done("/abort_request", {"rid": "", "abort_all": True})

    async def load(self, folder: str, version: str) -> None:
        """`/update_weights_from_disk`. Raises WeightsRefused."""
        body = {"model_path": folder, "weight_version": version, "flush_cache": True}
        await self._change("/update_weights_from_disk", body)

    async def begin_update(self) -> None:
        """`/begin_weight_update`: before weights from a tensor or a group. Raises WeightsRefused."""
        await self._change("/begin_weight_update", {"selector": "all"})

    async def end_update(self) -> None:
        """`/end_weight_update`. Raises WeightsRefused."""
        await self._change("/end_weight_update", {})

    async def join_group(self, body: Mapping[str, Any]) -> None:
        """`/init_weights_update_group`: returns when all its members are there. Raises WeightsRefused."""
        await self._change("/init_weights_update_group", body)

    async def leave_group(self, name: str) -> None:
        """`/destroy_weights_update_group`. Raises WeightsRefused."""
        await self._change("/destroy_weights_update_group", {"group_name": name})

    async def load_from_group(self, body: Mapping[str, Any]) -> None:
        """`/update_weights_from_distributed`: returns when what was broadcast is in use. Raises WeightsRefused."""
        await self._change("/update_weights_from_distributed", body)

    async def load_tensors(self, body: Mapping[str, Any]) -> None:
        """`/update_weights_from_tensor`: returns when they are in use. Raises WeightsRefused."""
        await self._change("/update_weights_from_tensor", body)

    async def release(self, tags: tuple[str, ...]) -> None:
        """`/release_memory_occupation`. With a request under way it ends the server: see `idle`."""
        await self._done("/release_memory_occupation", {"tags": list(tags)}, MEMORY_SECONDS)

    async def resume(self, tags: tuple[str, ...]) -> None:
        """`/resume_memory_occupation`. Of a tag that is not released it ends the server."""
        await self._done("/resume_memory_occupation", {"tags": list(tags)}, MEMORY_SECONDS)

    async def rename(self, version: str) -> None:
        """`/update_weight_version`: what its weights are called, and no more."""
        await self._done("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def forget_shared(self) -> None:
        """`/hicache/storage-backend/clear`: all that the storage behind the caches holds, whoever put it there."""
        await self._done("/hicache/storage-backend/clear", {})

    async def idle(self) -> None:
        """Until the server has no request, waiting or running. Raises EngineUnavailable if others keep it busy."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._emptied()
        except TimeoutError:
            raise EngineUnavailable(f"SGLang at {self.url}: other clients' requests keep it busy; end them") from None

    async def _emptied(self) -> None:
        while self._read(Loads, (await self._ask("/v1/loads", None, ANSWER_SECONDS))[1]).requests:  # noqa: ASYNC110
            await asyncio.sleep(_IDLE_PAUSE_SECONDS)

    async def info(self) -> ModelInfo:
        """`/model_info`; EngineUnavailable while nobody answers."""
        status, answer = await self._ask("/model_info", None, ANSWER_SECONDS)
        if status != 200:  # noqa: PLR2004  HTTP's word for success
            raise EngineUnavailable(f"SGLang at {self.url} answered {status}: {_said(answer)}")
        return self._read(ModelInfo, answer)

    async def ranks(self) -> int:
        """`/server_info`: how many receive weights. Raises WeightsRefused where its layout admits only files."""
        layout = await self._server_info()
        if layout.pp_size > 1 or layout.dp_size > 1:
            found = f"pp_size = {layout.pp_size}, dp_size = {layout.dp_size}"
            raise WeightsRefused(f"SGLang at {self.url}: {found}: only ranks of --tp-size receive weights so")
        return layout.tp_size

    async def tells_experts(self) -> bool:
        """`/server_info`: whether it was started so that it can tell which experts its model takes."""
        return (await self._server_info()).enable_return_routed_experts

    async def _server_info(self) -> ServerInfo:
        status, answer = await self._ask("/server_info", None, ANSWER_SECONDS)
        if status != 200:  # noqa: PLR2004  HTTP's word for success
            raise EngineUnavailable(f"SGLang at {self.url} answered {status}: {_said(answer)}")
        return self._read(ServerInfo, answer)

    async def close(self) -> None:
        """Close the connections; the server lives on."""
        if self._opened is not None:
            await self._opened.close()

    async def _change(self, path: str, body: Mapping[str, Any]) -> None:
        status, answer = await self._ask(path, body, WEIGHTS_SECONDS)
        try:
            done = TypeAdapter(tuple[bool, str] | Done).validate_json(answer)
        except ValidationError:
            raise WeightsRefused(f"SGLang at {self.url}{path} answered {status}: {_said(answer)}") from None
        success, message = (done.success, done.message) if isinstance(done, Done) else done
        if not success:
            raise WeightsRefused(f"SGLang at {self.url}{path}: {message}")

    async def _done(self, path: str, body: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> None:
        status, answer = await self._ask(path, body, seconds)
        if status != 200:  # noqa: PLR2004  HTTP's word for success
            raise EngineFailed(f"SGLang at {self.url}{path} answered {status}: {_said(answer)}")

    async def _ask(self, path: str, body: Mapping[str, Any] | None, seconds: float | None) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        method, data = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self.url + path, data=data, headers=headers, timeout=timeout
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnavailable(f"SGLang at {self.url}{path}: {type(error).__name__}: {error}") from error

    def _read(self, form: type[Form], answer: bytes) -> Form:
        try:
            return form.model_validate_json(answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise EngineFailed(
                f"SGLang at {self.url}: {where}: {first['msg']}; gyre speaks the API of 0.5.23"
            ) from error

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._opened


def _said(answer: bytes) -> str:
    """The message in an error's body, or its beginning."""
    try:
        found = orjson.loads(answer)
        error = found["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return answer[:300].decode(errors="replace")
