"""A model server that gives scripted answers, and the reference harness run against it as a process."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gyre.harnesses import reference

AGENT = Path(reference.__path__[0]) / "agent.py"
Reply = (
    dict[str, Any] | int | bytes
)  # an assistant message, an HTTP status to fail with, or raw bytes to send and hang up


@dataclass
class Server:
    """Answers the n-th request with the n-th reply and keeps the requests."""

    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    usage: int = 10
    error: str = "no"
    port: int = 0


def call(name: str, arguments: dict[str, Any] | str, call_id: str = "c1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def events(message: dict[str, Any], usage: int) -> bytes:
    """The message as a stream, its arguments cut in two."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": piece} for piece in message["content"] or ""]
    for index, tool in enumerate(message.get("tool_calls", ())):
        text = tool["function"]["arguments"]
        deltas.append(
            {"tool_calls": [{**tool, "index": index, "function": {**tool["function"], "arguments": text[:3]}}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text[3:]}}]})
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": usage, "completion_tokens": 1}})
    return b": ping\n\n" + b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n"


def handler_of(server: Server) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - a class of short methods
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = server.replies[min(len(server.requests), len(server.replies) - 1)]
            server.requests.append(request)
            server.paths.append(self.path)
            server.headers.append({key.lower(): value for key, value in self.headers.items()})
            self.answer_with(reply, streamed=bool(request.get("stream")))

        def answer_with(self, reply: Reply, *, streamed: bool) -> None:
            if isinstance(reply, bytes):
                self.wfile.write(reply)
                self.close_connection = True
            elif isinstance(reply, int):
                self.answer(reply, json.dumps({"error": {"message": server.error}}).encode())
            elif streamed:
                self.answer_in_chunks(events(reply, server.usage))
            else:
                usage = {"prompt_tokens": server.usage, "completion_tokens": 1}
                choice = {"index": 0, "message": reply, "finish_reason": "stop"}
                self.answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def answer_in_chunks(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (body[start : start + 7] for start in range(0, len(body), 7)):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            """Quiet."""

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    """A running scripted server on a free loopback port."""
    state = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(state))
    http.daemon_threads = True
    state.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace."""
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def say() -> Callable[..., dict[str, Any]]:
    """Builds an assistant message: text, and tool calls as (name, arguments)."""

    def build(text: str | None = None, *calls: tuple[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [call(name, arguments, f"c{n}") for n, (name, arguments) in enumerate(calls)]
        return message

    return build


@pytest.fixture
def agent(server: Server, workspace: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the harness to its end with some options and more environment."""

    def run(*options: str, **more: str) -> subprocess.CompletedProcess[str]:
        instruction = workspace.parent / "instruction.md"
        instruction.write_text("Do the job.\n")
        env = {
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/x/token/v1",
            "OPENAI_API_KEY": "key",
            "GYRE_INSTRUCTION_FILE": str(instruction),
            "GYRE_MODEL": "policy",
            **more,
        }
        command = [sys.executable, "-I", "-S", str(AGENT), *options]
        return subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, timeout=60, check=False)

    return run
