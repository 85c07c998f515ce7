"""Requests per second through our proxy and through LiteLLM's, in front of the same stub engine, in one run.

    python -m venv litellm && litellm/bin/pip install 'litellm[proxy]'     # anywhere but here
    python benchmarks/proxy_rivals.py --litellm litellm/bin/python [--clients 64] [--turns 4] [--seconds 150] [--json]

Three processes beside this one: the stub engine, our proxy (its services' own code, with a log behind it) and LiteLLM's
proxy with one worker. Rounds go back and forth between the two; medians are given. In each, every client holds a
conversation of its own, some turns with a tool's result each, all clients at once, streaming or not. The stub answers
at once and always the same: as token ids to us, as a Chat Completion to LiteLLM, whose stream it sends in one chunk,
which is the least that a stream can cost. Our proxy also matches, tokenises and records each call before it answers.

    rate        requests/s          cpu_ms      processor time of the proxy's process for a request
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from aiohttp import web
from proxy import RUN, SECRET, buses, commit, launched

from bus import subjects
from gyre.engines.blocks import KvBlocks
from gyre.engines.port import GenerateRequest, Generation, Health
from gyre.models.load import NANO
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.tokens import execution_token
from schemas.calls import VersionSpan
from schemas.roles import CellRegistered
from services.engine_server import engine_app, engine_runner
from services.proxy.service import ProxySettings, serve_proxy

ANSWER = "I read the file and write what is missing, line by line, until the check is green."
RESULT = "the file was written, and here is a line of output to read\n" * 4
START_SECONDS = 120.0
REQUEST_SECONDS = 60.0
_KEY = f"sk-{secrets.token_hex(32)}"


class Instant:
    """A generator that answers at once."""

    def __init__(self) -> None:
        model = ChatModel.load(NANO)
        self._ids = (*model.encode(ANSWER), model.stop_token_ids[0])

    async def generate(self, request: GenerateRequest) -> Generation:
        """Always the same."""
        count = len(self._ids)
        spans = (VersionSpan(version=1, tokens=count),)
        return Generation(self._ids, (-0.5,) * count, spans, "stop", 0, 0.0, 0.0)

    async def abort(self, request_id: str) -> None:
        """Nothing is ever in flight."""

    async def abort_all(self) -> None:
        """Nothing is ever in flight."""

    async def health(self) -> Health:
        """Always well."""
        return Health(1, 0, 1 << 20, admitting=True)

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        """It keeps nothing."""
        return KvBlocks(key, version, ())

    async def release_kv(self, key: str) -> None:
        """It keeps nothing."""

    async def take_kv(self, key: str, source: str) -> int:
        """It keeps nothing."""
        return 0

    async def close(self) -> None:
        """Nothing to stop."""


async def completions(request: web.Request) -> web.Response:
    """The same answer as a Chat Completion, for LiteLLM."""
    asked = json.loads(await request.read())
    head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    usage = {"prompt_tokens": 100, "completion_tokens": 30, "total_tokens": 130}
    message = {"role": "assistant", "content": ANSWER}
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[dict[str, Any]] = [{"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"}]
    chunks = [{**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **delta}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return web.Response(text=body, content_type="text/event-stream")


async def serve_engine(folder: Path) -> None:
    """The stub, until killed; its URL is in `engine.url`."""
    app = engine_app(Instant(), lambda: True)
    app.add_routes([web.post("/v1/chat/completions", completions)])
    runner = engine_runner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _note(folder / "engine.url", f"http://127.0.0.1:{runner.addresses[0][1]}")
    await asyncio.Event().wait()


async def serve_ours(folder: Path, kind: str, clients: int) -> None:
    """Our proxy in front of the stub, until killed."""
    (folder / "proxy.key").write_bytes(SECRET)
    settings = ProxySettings(RUN, folder, NANO, folder / "proxy.key", 0, 1.0, 128, 1 << 20)
    async with buses(kind, folder) as (proxy_bus, bus):
        url = (folder / "engine.url").read_text()
        registered = CellRegistered(cell=0, instance="cell-1", url=url, capacity=64, version=1)
        await bus.ev.append(subjects.ev(RUN, "cell", "cell", 0), commit("c", registered))
        for name in (f"x{client}" for client in range(clients)):
            subject = subjects.ev(RUN, "runner", "execution", name, "launched")
            await bus.ev.append(subject, commit(name, launched(name)))
        await serve_proxy(proxy_bus, settings)


def _note(path: Path, text: str) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(text)
    partial.replace(path)


class Proxy:
    """One of the two under test."""

    def __init__(self, process: subprocess.Popen[bytes], urls: Sequence[str], keys: Sequence[str]) -> None:
        """`urls` and `keys`: of each client."""
        self.process, self.urls, self.keys = process, urls, keys

    def cpu_seconds(self) -> float:
        """Processor time of the process up to now (Linux: the clock of another process)."""
        return time.clock_gettime(~self.process.pid << 3 | 2)


async def conversation(http: aiohttp.ClientSession, url: str, key: str, stream: bool, name: str, turns: int) -> None:
    """One client's."""
    messages: list[Any] = [{"role": "system", "content": "You work."}, {"role": "user", "content": f"write {name}"}]
    for _ in range(turns):
        body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        async with http.post(url, data=body, headers=headers) as response:
            answer = await response.read()
        if response.status != 200 or ANSWER.encode() not in answer:
            raise SystemExit(f"{url}: answered {response.status}: {answer[:300]!r}")
        messages += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": RESULT}]


async def one_round(proxy: Proxy, stream: bool, name: str, turns: int) -> tuple[float, float]:
    """(requests/s, milliseconds of the proxy's processor time a request)."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        cpu, start = proxy.cpu_seconds(), time.perf_counter()
        each = enumerate(zip(proxy.urls, proxy.keys, strict=True))
        await asyncio.gather(*(conversation(http, url, key, stream, f"{name}-{n}", turns) for n, (url, key) in each))
        seconds = time.perf_counter() - start
    requests = len(proxy.urls) * turns
    return requests / seconds, 1e3 * (proxy.cpu_seconds() - cpu) / requests


@contextlib.asynccontextmanager
async def stood(litellm: Path, kind: str, clients: int, folder: Path) -> AsyncIterator[dict[str, Proxy]]:
    """Both proxies in front of the stub."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (folder / f"{len(processes)}.log").open("wb")
        made = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        processes.append(made)
        return made

    try:
        own = (sys.executable, __file__, "--folder", str(folder), "--clients", str(clients), "--bus", kind)
        engine = await _said(start(*own, "--serve", "engine"), folder / "engine.url")
        ours = start(*own, "--serve", "ours")
        url = await _said(ours, folder / "proxy.url")
        tokens = [execution_token(SECRET, f"x{client}") for client in range(clients)]
        port = _free_port()
        theirs = start(*_litellm(litellm, folder, engine, port), LITELLM_LOG="ERROR")
        await _answers(theirs, f"http://127.0.0.1:{port}/health/liveliness", folder)
        yield {
            "gyre": Proxy(ours, [f"{url}/x/{token}/v1/chat/completions" for token in tokens], tokens),
            "litellm": Proxy(theirs, [f"http://127.0.0.1:{port}/v1/chat/completions"] * clients, [_KEY] * clients),
        }
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _litellm(python: Path, folder: Path, engine: str, port: int) -> tuple[str, ...]:
    """The command that starts their proxy: one worker, one model, one key, nothing written down."""
    config = folder / "litellm.yaml"
    upstream = {"model": "openai/m", "api_base": f"{engine}/v1", "api_key": "sk-x"}
    models = [{"model_name": "m", "litellm_params": upstream}]
    settings = {"telemetry": False, "num_retries": 0}
    body = {"model_list": models, "litellm_settings": settings, "general_settings": {"master_key": _KEY}}
    config.write_text(json.dumps(body))
    program = str(python.parent / "litellm")
    return program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"


async def _said(process: subprocess.Popen[bytes], note: Path) -> str:
    """What a process writes down once it listens."""
    async with asyncio.timeout(START_SECONDS):
        while not note.exists():
            if process.poll() is not None:
                raise SystemExit(f"{process.args!r} ended with {process.returncode}: see {note.parent}")
            await asyncio.sleep(0.05)
    return note.read_text()


async def _answers(process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            if process.poll() is not None:
                logs = "".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.log"))[-1:])
                raise SystemExit(f"litellm ended with {process.returncode}:\n{logs}")
            await asyncio.sleep(0.2)


async def measure(litellm: Path, kind: str, clients: int, turns: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians of both, streaming and not, and their ratios; no round begins when the seconds are over."""
    found: dict[str, list[tuple[float, float]]] = {}
    began, done = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        async with stood(litellm, kind, clients, Path(folder)) as proxies:
            _tell(began, "both stand")
            await _round(proxies, "warm", 1, began)
            while done < rounds and (not done or time.perf_counter() - began < seconds):
                for way, one in (await _round(proxies, str(done), turns, began)).items():
                    found.setdefault(way, []).append(one)
                done += 1
    result: dict[str, Any] = {"clients": clients, "turns": turns, "rounds": done, "bus": kind}
    for name, each in found.items():
        result |= {f"{name}_rate": median(rate for rate, _ in each), f"{name}_cpu_ms": median(cpu for _, cpu in each)}
    for way in ("whole", "stream"):
        result[f"ratio_{way}"] = result[f"gyre_{way}_rate"] / result[f"litellm_{way}_rate"]
    return result


async def _round(proxies: dict[str, Proxy], name: str, turns: int, began: float) -> dict[str, tuple[float, float]]:
    """Rate and processor time of each proxy in turn, streaming and not."""
    found: dict[str, tuple[float, float]] = {}
    for rival, proxy in proxies.items():
        for way in ("whole", "stream"):
            rate, cpu = await one_round(proxy, way == "stream", f"{name}-{way}", turns)
            found[f"{rival}_{way}"] = rate, cpu
            _tell(began, f"round {name}: {rival} {way}: {rate:.1f} requests/s, {cpu:.2f} ms of processor time each")
    return found


def _tell(began: float, what: str) -> None:
    print(f"{time.perf_counter() - began:6.1f} s  {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--litellm", type=Path, help="the python of an environment that has litellm[proxy]")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4, help="of each conversation")
    parser.add_argument("--rounds", type=int, default=3, help="at most, after one of a turn each that is not counted")
    parser.add_argument("--seconds", type=float, default=150.0, help="after which no further round begins")
    parser.add_argument("--bus", choices=("memory", "nats"), default="memory", help="nats: a real server, sync always")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    parser.add_argument("--serve", choices=("engine", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serving = serve_engine(options.folder)
        asyncio.run(serving if options.serve == "engine" else serve_ours(options.folder, options.bus, options.clients))
        return
    if options.litellm is None or not (options.litellm.parent / "litellm").exists():
        sys.exit(
            "--litellm: give the python of an environment that has it; to make one:\n"
            "  python -m venv E && E/bin/pip install 'litellm[proxy]'"
        )
    asked = (options.clients, options.turns, options.rounds, options.seconds)
    result = asyncio.run(measure(options.litellm, options.bus, *asked))
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:20} {value if isinstance(value, str | int) else round(value, 2)}")


if __name__ == "__main__":
    main()
