"""An SGLang server: one that runs somewhere, or one that is started here, watched, and ended with its owner."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gyre.engines.port import EngineFailed, EngineUnavailable
from gyre.engines.sglang import keeper
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.pulse import SILENT_SECONDS, heard

START_SECONDS = 900.0
"""A large model takes minutes to load."""
_PAUSE_SECONDS = 0.2
_TAIL_BYTES = 2000


class Server(Protocol):
    """Where to ask."""

    @property
    def url(self) -> str:
        """Its HTTP address."""
        ...

    async def start(self, client: Client) -> None:
        """See that it serves. EngineUnavailable, EngineFailed."""
        ...

    async def hear(self, client: Client) -> None:
        """Return once it answers. Raises EngineUnavailable when it has ended, or been silent for too long."""
        ...

    async def stop(self) -> bool:
        """End it, if it is ours; whether it is."""
        ...


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Somebody else's server: waited for, never started and never ended."""

    url: str
    silent_seconds: float = SILENT_SECONDS

    async def start(self, client: Client) -> None:
        """See `Server`: it has to answer now."""
        await client.info()

    async def hear(self, client: Client) -> None:
        """See `Server`: that it ended shows as silence too, and it may be back before that is too long."""
        await heard(client, lambda: True, self.silent_seconds)

    async def stop(self) -> bool:
        """See `Server`: it lives on."""
        return False


@dataclass(slots=True)
class ManagedServer:
    """`python -m sglang.launch_server` as a process of ours."""

    model: Path
    """Folder in Hugging Face format."""
    port: int
    log: Path
    """Where what it prints goes."""
    arguments: Sequence[str] = ()
    """Further arguments of the server: device, parallelism, memory."""
    python: str = sys.executable
    """The interpreter that has SGLang."""
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    silent_seconds: float = SILENT_SECONDS
    _process: asyncio.subprocess.Process | None = None
    _answered: bool = False
    """Whether it has come up; until then it may be silent."""

    @property
    def url(self) -> str:
        """See `Server`."""
        return f"http://{self.host}:{self.port}"

    @property
    def command(self) -> tuple[str, ...]:
        """What is run. Token-in, token-out: the server needs no tokenizer."""
        fixed = ("--skip-tokenizer-init", "--skip-server-warmup", "--weight-version", "none")
        where = ("--model-path", str(self.model), "--host", self.host, "--port", str(self.port))
        return (self.python, "-m", "sglang.launch_server", *where, *fixed, *self.arguments)

    async def start(self, client: Client) -> None:
        """See `Server`."""
        if self._process is not None and self._process.returncode is None:
            return
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                keeper.__file__,
                *self.command,
                stdin=asyncio.subprocess.PIPE,  # its end is the server's
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        await self._answers(client, self._process)
        self._answered = True

    async def hear(self, client: Client) -> None:
        """See `Server`."""
        await heard(client, self._serving, self.silent_seconds)

    def _serving(self) -> bool:
        if self._process is not None and (code := self._process.returncode) is not None:
            raise EngineUnavailable(f"SGLang ended with {code}: {self._last_line()}; see {self.log}")
        return self._answered

    async def stop(self) -> bool:
        """See `Server`."""
        self._answered = False
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
            self._process = None  # ended as it was told to: nothing to complain of
        return True

    async def _answers(self, client: Client, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while process.returncode is None:
                    try:
                        await client.info()
                    except EngineUnavailable:
                        await asyncio.sleep(_PAUSE_SECONDS)
                    else:
                        return
        except TimeoutError:
            await self.stop()
            raise EngineFailed(f"SGLang did not serve within {START_SECONDS:.0f} s; see {self.log}") from None
        raise EngineFailed(f"SGLang ended with {process.returncode}: {self._last_line()}; see {self.log}")

    def _last_line(self) -> str:
        lines = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it printed nothing"
